"""Sources of environments."""
