"""The TensorDict layer: a recurrent module in step and sequence mode.

In ``recurrl.recurrent``, only this package depends on tensordict and torchrl, apart from the re-exports of the latter.

Shape legend: B rows (all batch dimensions but time), T steps, I input size, H hidden size, O output size of a layer in
one direction, L layers, D directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn, cast

import torch
import torchrl.modules
from tensordict import TensorDictBase, unravel_key, unravel_key_list
from tensordict.nn import TensorDictModuleBase, dispatch
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.data import Unbounded
from torchrl.envs import TensorDictPrimer
from torchrl.modules import canonicalize_rnn_subset, recurrent_mode

from recurrl.keys import IS_INIT, path_of
from recurrl.recurrent import choice, layer, precision
from recurrl.recurrent.backends import Backend, Options
from recurrl.recurrent.cell import Cell, States
from recurrl.recurrent.cells import make_cell
from recurrl.recurrent.segments import Segments, only_ends

PYTHON_MODULES: dict[type[nn.RNNBase], type[nn.RNNBase]] = {nn.GRU: torchrl.modules.GRU, nn.LSTM: torchrl.modules.LSTM}
"""TorchRL's modules in plain Python, which work with ``torch.vmap``; their parameters are those of torch's own."""


class RecurrentModule(TensorDictModuleBase):
    """A stack of recurrent layers that reads and writes a TensorDict.

    Outside sequence mode (``set_recurrent_mode(False)``, the default) every element of the batch is one step:
    ``is_init`` zeroes the incoming states. In sequence mode the last batch dimension is time: the state that enters
    step t is the stored state at t where ``t == 0`` or ``is_init[t]``, else the state after step t − 1;
    ``("next", state)`` holds each segment's last state at the segment's last step and zero elsewhere.

    The parameters of GRU and LSTM live in a submodule named ``gru`` or ``lstm``, with torch's names, those of other
    cells in ``stack``.

    Args:
        cell: name of a cell, a module of :mod:`recurrl.recurrent.cells`; or a
            :class:`~recurrl.recurrent.cell.Cell`, which has its own ``hidden_size``.
        input_size: features of the input, I.
        hidden_size: features of the output, H, and of most cells' states.
        num_layers: layers, L.
        bias: give the layers biases.
        batch_first: must be true; accepted for compatibility with torch.
        dropout: dropout probability between layers, in training mode.
        proj_size: size of an LSTM's projected output; 0 for no projection.
        bidirectional: also run each segment backwards, D = 2.
        python_based: compute in plain Python, so that ``torch.vmap`` and other transforms of ``torch.func`` work on the
            module and its submodule: where the backend is ``auto`` or ``pad``, sequences use ``reference``. Not
            supported with ``bidirectional``, as in TorchRL.
        recurrent_backend: ``auto``, ``native``, ``reference``, ``pad``, ``scan`` or ``triton``, used in sequence
            mode; or a custom :class:`~recurrl.recurrent.backends.Backend`.
        recurrent_compute_dtype: dtype of the recurrent matmul's operands, for ``triton``; others warn and ignore it.
        recurrent_recompute: ``none``, or ``full`` to save memory by recomputing the forward pass in the backward pass.
        recurrent_matmul_precision: matmul precision, see :mod:`recurrl.recurrent.precision`. Backends that compute with
            torch's matmuls ignore it, with a warning, where it differs from torch's settings.
        in_key: key of the input; the states get their default keys. Exclusive with ``in_keys``.
        in_keys: keys of the input, of each state, and optionally of ``is_init``.
        out_key: key of the output; the new states get their default keys under ``"next"``. Exclusive with ``out_keys``.
        out_keys: keys of the output and of each new state.
        device: where the parameters live.
        wrapped: a torch module whose parameters and sizes to use; those passed here are ignored, as in TorchRL.
        default_recurrent_mode: the mode when no ``set_recurrent_mode`` is active. Default: False.

    Raises:
        ValueError: an option is out of range, or the backend does not support the options on any device.
        TypeError, RuntimeError: a key has the wrong type.
        NotImplementedError: ``python_based`` with ``bidirectional``.

    Attributes:
        DEFAULT_IN_KEYS: keys of the states if the constructor gets ``in_key``; empty to derive them from the cell.
        DEFAULT_OUT_KEYS: keys of the new states if the constructor gets ``out_key``; empty for those under ``"next"``.
        backend_in_use: the backend that ran last; None before the first call in sequence mode.
    """

    DEFAULT_IN_KEYS: ClassVar[Sequence[NestedKey]] = ()
    DEFAULT_OUT_KEYS: ClassVar[Sequence[NestedKey]] = ()

    def __init__(
        self,
        cell: str | Cell,
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
        wrapped: nn.RNNBase | None = None,
        default_recurrent_mode: bool | None = None,
    ) -> None:
        super().__init__()
        if wrapped is not None:
            if input_size is not None or hidden_size is not None:
                raise ValueError(
                    f"{self._name} takes sizes or a {cell} to wrap, not both: the {cell} already has sizes."
                )
            input_size, hidden_size, batch_first = wrapped.input_size, wrapped.hidden_size, wrapped.batch_first
            bias, proj_size = wrapped.bias, wrapped.proj_size
        if not batch_first:
            raise ValueError(
                f"batch_first=False is not supported by {self._name}: a TensorDict's first dimensions are its batch."
            )
        if not input_size or not (hidden_size or isinstance(cell, Cell)):
            raise ValueError(
                f"{self._name} needs input_size and hidden_size, or a torch module to wrap. Got "
                f"input_size={input_size} and hidden_size={hidden_size}."
            )
        if isinstance(cell, str):
            cell = make_cell(cell, hidden_size or 0, bias, proj_size)
        elif hidden_size is not None or not bias or proj_size:
            raise ValueError(
                f"{self._name} takes hidden_size, bias and proj_size with the name of a cell only: this "
                f"{type(cell).__name__} already has its own. Leave them out."
            )
        self.cell = cell
        self._submodule = self.cell.name if self.cell.TORCH else "stack"
        sizes = {"input_size": input_size, "num_layers": num_layers, "dropout": dropout, "bidirectional": bidirectional}
        layers = wrapped or _make_layers(cell, python_based, bias, device, **sizes)
        self.add_module(self._submodule, layers)
        self.python_based = python_based or isinstance(wrapped, tuple(PYTHON_MODULES.values()))
        names: list[NestedKey] = [f"recurrent_state{suffix}" for suffix in self.cell.state_shapes()]
        self.in_keys = _read_keys(self._name, self.DEFAULT_IN_KEYS or names, in_key, in_keys)
        new_states = self.DEFAULT_OUT_KEYS or [("next", name) for name in names]
        self.out_keys = _written_keys(self._name, new_states, out_key, out_keys)
        self.default_recurrent_mode = default_recurrent_mode
        self.recurrent_backend = recurrent_backend
        self.recurrent_compute_dtype = recurrent_compute_dtype
        self.recurrent_recompute = recurrent_recompute
        self.recurrent_matmul_precision = recurrent_matmul_precision
        self.backend_in_use: str | None = None
        self._resolved: tuple[tuple[Any, ...], str | Backend] = ((), "")
        self._weights = layer.weight_names(self.cell, self.layers)
        precision.check(recurrent_matmul_precision)
        # The device is not known yet: the parameters may be moved.
        choice.check_supported(self._name, recurrent_backend, self.cell, self.options, None)

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def layers(self) -> layer.Parameters:
        """The submodule that holds the parameters."""
        # torch.compile rejects torch's recurrent modules, whose forward it would unroll. Only their parameters are read
        # here, so they are allowed while the compiler looks at the module for the first time.
        compiling = torch.compiler.is_compiling()
        before = compiling and _allow_rnn(True)
        layers = cast(layer.Parameters, self._modules[self._submodule])
        if compiling and layers.hidden_size:
            _allow_rnn(before)
        return layers

    @property
    def options(self) -> Options:
        """The options passed to the backend."""
        return Options(self.recurrent_recompute, self.recurrent_matmul_precision, self.recurrent_compute_dtype)

    @property
    def state_keys(self) -> list[NestedKey]:
        """Keys the incoming states are read from."""
        return self.in_keys[1:-1]

    @property
    def recurrent_mode(self) -> bool:
        """True if a call now would treat the last batch dimension as time."""
        mode = recurrent_mode()
        return bool(self.default_recurrent_mode) if mode is None else mode

    @recurrent_mode.setter
    def recurrent_mode(self, value: bool) -> None:
        raise RuntimeError("recurrent_mode cannot be set on a module. Use the context manager set_recurrent_mode.")

    def set_recurrent_mode(self, mode: bool = True) -> NoReturn:
        """Not supported on a module, as in TorchRL since 0.8.

        Raises:
            RuntimeError: always; the message says what to use instead.
        """
        raise RuntimeError(
            f"{self._name}.set_recurrent_mode({mode}) is not supported. Use the context manager "
            f"recurrl.recurrent.set_recurrent_mode({mode}), or construct the module with default_recurrent_mode={mode}."
        )

    @property
    def temporal_mode(self) -> NoReturn:
        """The former name of ``recurrent_mode``.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("temporal_mode was renamed. Use recurrent_mode.")

    def make_python_based(self) -> RecurrentModule:
        """Replaces the submodule by one in plain Python with the same parameters, without torch's fused kernels.

        Returns the module.

        Raises:
            ValueError: the cell exists only in plain Python.
        """
        return self._converted(python_based=True)

    def make_cudnn_based(self) -> RecurrentModule:
        """Replaces the submodule by torch's own with the same parameters, enabling torch's fused kernels.

        Returns the module. ``make_python_based`` undoes it.

        Raises:
            ValueError: torch has no such module.
        """
        return self._converted(python_based=False)

    def _converted(self, python_based: bool) -> RecurrentModule:
        """Replaces the submodule by one of the same parameters."""
        if self.cell.TORCH is None:
            raise ValueError(f"The cell {self.cell.name} cannot be converted: torch has no module for it.")
        old = self.layers
        names = ("input_size", "num_layers", "bias", "dropout", "bidirectional")
        sizes = {name: getattr(old, name) for name in names}
        new = _make_layers(self.cell, python_based, device="meta", **sizes)
        for name, parameter in old.named_parameters():
            setattr(new, name, parameter)
        setattr(self, self._submodule, new.train(old.training))
        self.python_based = python_based
        return self

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """A transform that adds the recurrent states to an environment: specs, and zeros at resets.

        Raises:
            RuntimeError: a new state is not written where the next step reads it.
        """
        written, wanted = self.out_keys[1:], [unravel_key(("next", key)) for key in self.state_keys]
        if written != wanted:
            raise RuntimeError(
                f"The states are read from {self.state_keys} but written to {written}. For an environment to carry "
                f"them from step to step, they must be written to {wanted}."
            )
        shapes = zip(self.state_keys, layer.stacked_state_shapes(self.cell, self.layers), strict=True)
        return TensorDictPrimer({key: Unbounded(shape=shape) for key, shape in shapes}, expand_specs=True)

    @property
    def canonical_keys(self) -> list[NestedKey]:
        """The entries whose memory layout matters: all that the module reads and writes."""
        return [*self.in_keys, *self.out_keys]

    def canonicalize(self, data: TensorDictBase, *, inplace: bool = False) -> TensorDictBase:
        """``data`` with this module's entries made contiguous, the others unchanged.

        Args:
            data: missing entries are ignored.
            inplace: modify ``data`` instead of a shallow copy.
        """
        return canonicalize_rnn_subset(data, [self], inplace=inplace)

    @dispatch  # type: ignore[untyped-decorator]
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Runs one step or a sequence, and writes the output and the new states.

        Raises:
            KeyError: the input, ``is_init``, or one of several states is missing.
            ValueError: sequence mode on a TensorDict without a time dimension, or a backend that cannot run here.
        """
        sequence = self.recurrent_mode
        batch = tensordict.batch_size
        if sequence and not batch:
            raise ValueError("Sequence mode needs a TensorDict with at least one batch dimension; the last is time.")
        # Step mode treats any batch as B rows, sequence mode as B rows of T steps.
        lead = (batch[:-1].numel(), batch[-1]) if sequence else (batch.numel(),)
        entries = {key: tensordict.get(key) for key in self.in_keys}
        missing = [key for key, value in entries.items() if value is None]
        if missing and missing != self.state_keys:
            raise KeyError(
                f"{self._name} needs the entries {missing}, which are not in the TensorDict. (is_init comes from an "
                "InitTracker transform on the environment; states may be left out, but only all of them.)"
            )
        x, *states, is_init = entries.values()
        x, is_init = x.reshape(*lead, x.shape[len(batch) :].numel()), is_init.reshape(lead).bool()
        stored = tuple(
            x.new_zeros(()).expand(*lead, *shape) if state is None else state.reshape(*lead, *shape)
            for state, shape in zip(states, layer.stacked_state_shapes(self.cell, self.layers), strict=True)
        )
        output, new_states = self.run(x, is_init, stored, sequence)
        if sequence:
            new_states = only_ends(new_states, is_init)
        for key, value in zip(self.out_keys, (output, *new_states), strict=True):
            tensordict.set(key, value.reshape(*batch, *value.shape[len(lead) :]))
        return tensordict

    def run(self, x: Tensor, is_init: Tensor | None, states: States, sequence: bool) -> tuple[Tensor, States]:
        """Like ``forward``, on plain tensors.

        Args:
            x: ``[B, T, I]``, or ``[B, I]`` for one step.
            is_init: ``[B, T]``; or ``[B]`` for one step, where None stands for no resets.
            states: stored states, ``[B, T, L·D, ...]`` each, or ``[B, L·D, ...]``.
            sequence: True for sequences, False for single steps.

        Returns:
            The output ``[B, T, D·O]`` and the new states, shaped as the stored ones; without T for one step. In a
            sequence, new states are valid only at the last step of each segment; at other steps they may be anything.

        Raises:
            ValueError: the backend cannot run here.
        """
        device = x.device.type
        if torch.is_autocast_enabled(device):
            # Compute in the dtype of the weights, whatever the preceding layers produced.
            dtype = next(self.layers.named_parameters())[1].dtype
            with torch.autocast(device, enabled=False):
                return self.run(x.to(dtype), is_init, tuple(state.to(dtype) for state in states), sequence)
        if sequence:
            return self._sequence(x, is_init, states)
        if is_init is not None:
            states = tuple([layer.reset_state(state, is_init) for state in states])
        return layer.run_layers(layer.one_step(self.cell), self.layers, self._weights, x, states)

    def _sequence(self, x_BTI: Tensor, is_init_BT: Tensor | None, states: States) -> tuple[Tensor, States]:
        assert is_init_BT is not None
        if torch.compiler.is_compiling():
            backend = self._resolve(x_BTI)
        else:
            # Kept for the next call. Compared, not looked up in a dict: a custom backend need not be hashable.
            requested = (self.recurrent_backend, self.python_based, self.options, x_BTI.device, x_BTI.dtype)
            if self._resolved[0] != requested:
                self._resolved = requested, self._resolve(x_BTI)
            backend = self._resolved[1]
        name = choice.name_of(backend)
        if self.backend_in_use != name:  # a module takes long to set an attribute
            self.backend_in_use = name
        segments = Segments(is_init_BT.to(x_BTI.device))
        run = layer.all_steps(choice.backend_of(backend), self.cell, segments, self.options)
        return layer.run_layers(run, self.layers, self._weights, x_BTI, states)

    def _resolve(self, x_BTI: Tensor) -> str | Backend:
        """The backend for inputs of this kind: never ``auto``."""
        backend = self.recurrent_backend
        if self.python_based and backend in (choice.AUTO, "pad"):
            backend = "reference"
        return choice.resolve(self._name, self.cell, backend, self.options, x_BTI.device, x_BTI.dtype)


def _make_layers(
    cell: Cell, python_based: bool, bias: bool, device: torch.device | str | None, **sizes: Any
) -> layer.Parameters:
    """New layers of a cell; ``sizes`` are the other arguments of ``nn.LSTM``."""
    if cell.TORCH is None:
        return layer.StackedParameters(cell, **sizes, device=device)
    form: Any = PYTHON_MODULES[cell.TORCH] if python_based else cell.TORCH
    sizes |= {"proj_size": cell.proj_size} if cell.proj_size else {}
    layers: layer.Parameters = form(hidden_size=cell.hidden_size, bias=bias, **sizes, batch_first=True, device=device)
    return layers


def _read_keys(
    owner: str, states: Sequence[NestedKey], in_key: NestedKey | None, in_keys: Sequence[NestedKey] | None
) -> list[NestedKey]:
    """The keys of the input, of each state (by default ``states``), and of ``is_init``, which is added if missing.

    Raises:
        ValueError: not exactly one of ``in_key`` and ``in_keys`` is None, or a key is missing; names ``owner``.
        TypeError, RuntimeError: a key has the wrong type.
    """
    keys = _keys("in_key", in_key, in_keys, states)
    if not keys or path_of(keys[-1])[-1] != IS_INIT:
        keys.append(IS_INIT)
    if len(keys) != 2 + len(states):
        raise ValueError(
            f"{owner} reads one input, {len(states)} state(s) and optionally 'is_init' last. Got in_keys={keys}."
        )
    return keys


def _written_keys(
    owner: str, states: Sequence[NestedKey], out_key: NestedKey | None, out_keys: Sequence[NestedKey] | None
) -> list[NestedKey]:
    """The keys of the output and of each new state (by default ``states``).

    Raises:
        ValueError: not exactly one of ``out_key`` and ``out_keys`` is None, or a key is missing; names ``owner``.
        TypeError, RuntimeError: a key has the wrong type.
    """
    keys = _keys("out_key", out_key, out_keys, states)
    if len(keys) != 1 + len(states):
        raise ValueError(f"{owner} writes one output and {len(states)} state(s). Got out_keys={keys}.")
    return keys


def _keys(
    name: str, single: NestedKey | None, several: Sequence[NestedKey] | None, states: Sequence[NestedKey]
) -> list[NestedKey]:
    if (single is None) == (several is None):
        raise ValueError(f"Pass either {name} or {name}s. Got {name}={single!r} and {name}s={several!r}.")
    return list(unravel_key_list([single, *states] if single is not None else several))


# The compiler runs this while it traces. The setting is private: torch has no public one.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _allow_rnn(allow: bool) -> bool:
    """Sets whether the compiler accepts torch's recurrent modules. Returns the setting before."""
    config = torch._dynamo.config
    before, config.allow_rnn = config.allow_rnn, allow
    return bool(before)
