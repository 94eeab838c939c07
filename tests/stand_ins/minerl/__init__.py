"""Stands in for MineRL 0.4.4 in tests: the same modules, handlers, spaces, keys and errors, and a toy world behind."""
