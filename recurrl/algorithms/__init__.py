"""Algorithms: how a batch is prepared for learning, and its loss."""
