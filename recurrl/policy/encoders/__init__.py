"""Encoders, which map an observation to the vector that enters the cell, with one network per entry."""

from recurrl.policy.preprocessing import per_entry

__all__ = ["per_entry"]
