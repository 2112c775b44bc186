"""Encoders: from an observation to the vector that enters the cell."""

from recurrl.policy.encoders.entries import per_entry

__all__ = ["per_entry"]
