"""Encoders: from an observation to the vector that enters the cell."""
