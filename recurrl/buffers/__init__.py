"""Buffers, which cut rollouts into minibatches and may replay earlier ones."""
