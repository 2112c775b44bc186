"""Learning from a batch: slices, the states they start from, and the updates."""
