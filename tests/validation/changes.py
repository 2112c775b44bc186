"""How changes of a configuration are shown in the name of a test."""

from __future__ import annotations


def changed(value: object) -> str:
    """Changes as they would be typed; nothing for what else a test is given."""
    return " ".join(f"{key}={new}" for key, new in value.items()) if isinstance(value, dict) else ""
