"""Returns of imagined or replayed trajectories, chosen in YAML by ``_target_``."""
