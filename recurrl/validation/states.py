"""The source of the recurrent states that slices start from."""

from __future__ import annotations

from recurrl.config import BURN_IN, NO_CELL, STORED, TrainConfig
from recurrl.errors import require


def check(config: TrainConfig) -> None:
    """Rejects a state policy without states, and burn-in without preceding steps."""
    require(
        config.cell.name != NO_CELL or config.state == STORED,
        f"state={config.state} concerns recurrent states, but cell=none has none. Leave state out, or choose a cell.",
    )
    if config.state != BURN_IN:
        require(
            config.burn_in_len is None,
            f"burn_in_len={config.burn_in_len} has no effect with state={config.state}. Leave it out, or give "
            "state=burn_in.",
        )
        return
    require(
        config.burn_in_len is not None,
        f"state=burn_in needs burn_in_len, the number of warm-up steps before a slice. Give "
        f"burn_in_len={max(1, config.slice_len // 2)}, "
        "for example.",
    )
    require(
        config.burn_in_len is None or config.burn_in_len < config.slice_len,
        f"burn_in_len={config.burn_in_len} is not less than slice_len={config.slice_len}: burn-in steps come from the "
        f"preceding slice. Give burn_in_len={max(1, config.slice_len // 2)}, or a larger slice_len.",
    )
    require(
        config.slice_len < config.steps_per_row,
        f"state=burn_in has no burn-in steps with slice_len={config.slice_len}, a whole row: no slice has steps before "
        "it. Give a smaller slice_len, or a larger frames_per_batch.",
    )
