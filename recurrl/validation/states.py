"""Where the states that slices start from come from."""

from __future__ import annotations

from recurrl.config import BURN_IN, NO_CELL, STORED, TrainConfig
from recurrl.errors import require


def check(config: TrainConfig) -> None:
    """Refuses a state policy without states, and a burn-in that has no steps to burn in."""
    require(
        config.cell.name != NO_CELL or config.state == STORED,
        f"state={config.state} is about recurrent states, and cell=none has none. Leave state out, or choose a cell.",
    )
    if config.state != BURN_IN:
        require(
            config.burn_in_len is None,
            f"burn_in_len={config.burn_in_len} has no meaning with state={config.state}. Leave it out, or give "
            "state=burn_in.",
        )
        return
    require(
        config.burn_in_len is not None,
        "state=burn_in needs burn_in_len, the number of steps that warm the state before a slice. Give "
        f"burn_in_len={max(1, config.slice_len // 2)}, for example.",
    )
    require(
        config.burn_in_len is None or config.burn_in_len < config.slice_len,
        f"burn_in_len={config.burn_in_len} is not less than slice_len={config.slice_len}: burn-in comes out of the one "
        f"slice before. Give burn_in_len={max(1, config.slice_len // 2)}, or a larger slice_len.",
    )
    require(
        config.slice_len < config.steps_per_row,
        f"state=burn_in has no steps to burn in with slice_len={config.slice_len}, which is a whole row: no slice has "
        "steps before it. Give a smaller slice_len, or a larger frames_per_batch.",
    )
