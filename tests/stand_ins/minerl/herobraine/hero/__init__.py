"""As in MineRL."""
