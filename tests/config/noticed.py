"""A package that a run may import."""
