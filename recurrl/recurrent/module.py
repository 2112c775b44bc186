"""The TensorDict layer: keys, step and sequence mode, primers.

The one file of the package that knows tensordict and torchrl.

Shape legend: B rows (all batch dimensions but time), T steps, I input size, H hidden size, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase, unravel_key, unravel_key_list
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.data import Unbounded
from torchrl.envs import TensorDictPrimer
from torchrl.modules import recurrent_mode

from recurrl.recurrent import backends
from recurrl.recurrent.backends import Options
from recurrl.recurrent.cells import load_cell
from recurrl.recurrent.layer import Parameters, run_sequence, run_step
from recurrl.recurrent.segments import Segments


class RecurrentModule(TensorDictModuleBase):
    """A stack of recurrent layers that reads and writes a TensorDict.

    Outside sequence mode (``torchrl.modules.set_recurrent_mode(False)``, the default) every element of the batch is
    one step: ``is_init`` zeroes the incoming states. In sequence mode the last batch dimension is time: the state that
    enters step t is the stored state at t where ``t == 0`` or ``is_init[t]``, else the state that step t − 1 produced;
    ``("next", state)`` holds each segment's last state at the segment's last step and zero elsewhere.

    The parameters live in a submodule named after the cell (``gru``, ``lstm``), with torch's names.

    Args:
        cell: name of the cell, a module of :mod:`recurrl.recurrent.cells`.
        input_size: features of the input, I.
        hidden_size: features of each state, H.
        num_layers: layers, L.
        bias: whether the layers have biases.
        batch_first: must be true; accepted for compatibility with torch's signature.
        dropout: probability of dropout between layers, in training mode.
        recurrent_backend: ``auto``, ``reference``, ``pad``, ``scan`` or ``triton``, used in sequence mode.
        recurrent_recompute: ``none``, or ``full`` to run the forward pass again in the backward pass for less memory.
        recurrent_matmul_precision: precision of matrix products on a GPU; on a CPU always ``ieee``.
        in_key: key of the input; the states get their default keys. Exclusive with ``in_keys``.
        in_keys: keys of the input, of each state, and optionally of ``is_init``.
        out_key: key of the output; the new states get their default keys under ``"next"``. Exclusive with ``out_keys``.
        out_keys: keys of the output and of each new state.
        device: where the parameters live.
        default_recurrent_mode: the mode when no ``set_recurrent_mode`` is active. Default: False.

    Raises:
        ValueError: an option is out of range, or the backend cannot do what is asked.
    """

    def __init__(
        self,
        cell: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0.0,
        recurrent_backend: str = "auto",
        recurrent_recompute: str = "none",
        recurrent_matmul_precision: str = "ieee",
        *,
        in_key: NestedKey | None = None,
        in_keys: Sequence[NestedKey] | None = None,
        out_key: NestedKey | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        device: torch.device | str | None = None,
        default_recurrent_mode: bool = False,
    ) -> None:
        super().__init__()
        if not batch_first:
            raise ValueError("batch_first=False is not possible: a TensorDict's first dimensions are its batch.")
        self.cell = load_cell(cell)
        self.cell_name = cell
        self.options = Options(recompute=recurrent_recompute, precision=recurrent_matmul_precision)
        device = torch.device(device or "cpu")
        reason = backends.refusal(recurrent_backend, self.cell, self.options, device)
        if reason is not None:
            raise ValueError(reason)
        self.recurrent_backend = recurrent_backend
        self.default_recurrent_mode = default_recurrent_mode
        state_keys: list[NestedKey] = [f"recurrent_state{suffix}" for suffix in self.cell.STATES]
        self.in_keys = _keys("in_key", in_key, in_keys, state_keys)
        self.out_keys = _keys("out_key", out_key, out_keys, [unravel_key(("next", key)) for key in state_keys])
        expected = 1 + len(state_keys)
        if len(self.in_keys) == expected:
            self.in_keys = [*self.in_keys, "is_init"]
        if len(self.in_keys) != expected + 1 or len(self.out_keys) != expected:
            raise ValueError(
                f"{type(self).__name__} reads one input and {len(state_keys)} state(s), and writes one output and as "
                f"many states. Got in_keys={self.in_keys} and out_keys={self.out_keys}."
            )
        layers = Parameters(
            self.cell.MODE,
            input_size,
            hidden_size,
            num_layers,
            bias=bias,
            batch_first=True,
            dropout=dropout,
            device=device,
        )
        self.add_module(cell, layers)

    @property
    def layers(self) -> Parameters:
        """The submodule that holds the parameters."""
        layers = getattr(self, self.cell_name)
        assert isinstance(layers, Parameters)
        return layers

    @property
    def state_keys(self) -> list[NestedKey]:
        """Keys the incoming states are read from."""
        return self.in_keys[1:-1]

    @property
    def recurrent_mode(self) -> bool:
        """Whether a call now would treat the last batch dimension as time."""
        mode = recurrent_mode()
        return self.default_recurrent_mode if mode is None else mode

    def resolved_backend(self) -> str:
        """The backend that runs here and now: the one asked for, or what ``auto`` stands for."""
        if self.recurrent_backend != backends.AUTO:
            return self.recurrent_backend
        return backends.choose(self.cell, self.options, next(self.layers.parameters()).device)

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """The transform that gives an environment the recurrent states: specs, and zeros at resets.

        Raises:
            ValueError: a new state is not written where the next step would read it.
        """
        wanted = [unravel_key(("next", key)) for key in self.state_keys]
        if self.out_keys[1:] != wanted:
            raise ValueError(
                f"The states are read from {self.state_keys} but written to {self.out_keys[1:]}; an environment can "
                f"carry them from step to step only if they are written to {wanted}."
            )
        shape = (self.layers.num_layers, self.layers.hidden_size)
        return TensorDictPrimer({key: Unbounded(shape=shape) for key in self.state_keys}, expand_specs=True)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Runs one step, or a sequence, and writes the output and the new states.

        Raises:
            KeyError: the input or ``is_init`` is missing.
            ValueError: sequence mode on a TensorDict without a time dimension.
        """
        sequence = self.recurrent_mode
        batch = tensordict.batch_size
        if sequence and not batch:
            raise ValueError("Sequence mode needs a TensorDict with at least one batch dimension, which is time.")
        # Step mode reads any batch as B rows; sequence mode as B rows of T steps.
        lead = (-1, batch[-1]) if sequence else (-1,)
        x = tensordict.get(self.in_keys[0])
        is_init = tensordict.get(self.in_keys[-1])
        if x is None or is_init is None:
            missing = self.in_keys[0] if x is None else self.in_keys[-1]
            raise KeyError(
                f"{type(self).__name__} needs the entry {missing!r}, which is not in the TensorDict. (is_init comes "
                "from an InitTracker transform on the environment.)"
            )
        x = x.reshape(*lead, x.shape[-1])
        is_init = is_init.reshape(lead)
        states = tuple(self._state(tensordict, key, x) for key in self.state_keys)
        if sequence:
            output, new_states = run_sequence(
                self.resolved_backend(),
                self.cell,
                self.layers,
                x,
                Segments.from_is_init(is_init),
                states,
                self.options,
            )
        else:
            output, new_states = run_step(self.cell, self.layers, x, is_init, states)
        for key, value in zip(self.out_keys, (output, *new_states), strict=True):
            tensordict.set(key, value.reshape(*batch, *value.shape[len(lead) :]))
        return tensordict

    def _state(self, tensordict: TensorDictBase, key: NestedKey, x: Tensor) -> Tensor:
        layers, hidden = self.layers.num_layers, self.layers.hidden_size
        state = tensordict.get(key)
        if state is None:
            return x.new_zeros(*x.shape[:-1], layers, hidden)
        return state.reshape(*x.shape[:-1], layers, hidden)


class GRUModule(RecurrentModule):
    """Gated recurrent units. See :class:`RecurrentModule`; the state's default key is ``recurrent_state``."""

    def __init__(self, input_size: int, hidden_size: int, *args: Any, **kwargs: Any) -> None:
        super().__init__("gru", input_size, hidden_size, *args, **kwargs)


class LSTMModule(RecurrentModule):
    """Long short-term memory. See :class:`RecurrentModule`; the states' default keys are ``recurrent_state_h`` and
    ``recurrent_state_c``.
    """

    def __init__(self, input_size: int, hidden_size: int, *args: Any, **kwargs: Any) -> None:
        super().__init__("lstm", input_size, hidden_size, *args, **kwargs)


def _keys(
    name: str, single: NestedKey | None, several: Sequence[NestedKey] | None, state_keys: Sequence[NestedKey]
) -> list[NestedKey]:
    if (single is None) == (several is None):
        raise ValueError(f"Give either {name} or {name}s. Got {name}={single!r} and {name}s={several!r}.")
    if single is not None:
        return [unravel_key(single), *state_keys]
    return list(unravel_key_list(list(several or ())))
