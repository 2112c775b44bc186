"""Drop-in replacements for TorchRL's recurrent modules, with the same names and signatures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from tensordict.utils import NestedKey
from torch import nn

from recurrl.recurrent import choice, precision
from recurrl.recurrent.backends import Backend
from recurrl.recurrent.module import RecurrentModule


class GRUModule(RecurrentModule):
    """GRU layers. See :class:`RecurrentModule`; the state's default key is ``recurrent_state``.

    ``gru`` is an ``nn.GRU`` to wrap. A drop-in replacement for ``torchrl.modules.GRUModule``; docs/torchrl.md lists the
    differences.
    """

    DEFAULT_IN_KEYS: ClassVar[list[NestedKey]] = ["recurrent_state"]
    DEFAULT_OUT_KEYS: ClassVar[list[NestedKey]] = [("next", "recurrent_state")]

    def __init__(
        self,
        input_size: int | None = None,
        hidden_size: int | None = None,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        python_based: bool = False,
        recurrent_backend: str | Backend = choice.AUTO,
        recurrent_compute_dtype: torch.dtype = torch.float32,
        recurrent_recompute: str = "none",
        recurrent_matmul_precision: str = precision.AUTO,
        *,
        in_key: NestedKey | None = None,
        in_keys: Sequence[NestedKey] | None = None,
        out_key: NestedKey | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        device: torch.device | str | None = None,
        gru: nn.RNNBase | None = None,
        default_recurrent_mode: bool | None = None,
    ) -> None:
        options = _named(locals())
        super().__init__("gru", wrapped=options.pop("gru"), **options)


class LSTMModule(RecurrentModule):
    """LSTM layers. See :class:`RecurrentModule`; the states' default keys are ``recurrent_state_h`` and
    ``recurrent_state_c``.

    ``lstm`` is an ``nn.LSTM`` to wrap. A drop-in replacement for ``torchrl.modules.LSTMModule``; docs/torchrl.md lists
    the differences.
    """

    DEFAULT_IN_KEYS: ClassVar[list[NestedKey]] = ["recurrent_state_h", "recurrent_state_c"]
    DEFAULT_OUT_KEYS: ClassVar[list[NestedKey]] = [("next", "recurrent_state_h"), ("next", "recurrent_state_c")]

    def __init__(
        self,
        input_size: int | None = None,
        hidden_size: int | None = None,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0.0,
        proj_size: int = 0,
        bidirectional: bool = False,
        python_based: bool = False,
        recurrent_backend: str | Backend = choice.AUTO,
        recurrent_compute_dtype: torch.dtype = torch.float32,
        recurrent_recompute: str = "none",
        recurrent_matmul_precision: str = precision.AUTO,
        *,
        in_key: NestedKey | None = None,
        in_keys: Sequence[NestedKey] | None = None,
        out_key: NestedKey | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        device: torch.device | str | None = None,
        lstm: nn.RNNBase | None = None,
        default_recurrent_mode: bool | None = None,
    ) -> None:
        options = _named(locals())
        super().__init__("lstm", wrapped=options.pop("lstm"), **options)


def _named(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a constructor by name, from its ``locals()``."""
    return {name: value for name, value in arguments.items() if name not in ("self", "__class__")}
