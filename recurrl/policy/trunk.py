"""From observations to features: an encoder, followed by a recurrent cell or a feed-forward network.

Shape legend: B rows, T steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tensordict import NestedKey
from torch import Size, Tensor, nn
from torchrl.data import TensorSpec

from recurrl.config import NO_CELL, TrainConfig
from recurrl.config.plugins import factory
from recurrl.errors import require
from recurrl.policy.encoders.checked import make_encoder
from recurrl.policy.functions import as_function, chain
from recurrl.policy.initialization import TANH_GAIN, linear
from recurrl.policy.normalization import observe
from recurrl.policy.preprocessing import make_preprocessing
from recurrl.recurrent import RecurrentModule
from recurrl.recurrent.cell import Cell
from recurrl.recurrent.gated import GatedCell
from recurrl.recurrent.layer import state_shapes

State = Mapping[NestedKey, Tensor]
NewState = dict[NestedKey, Tensor]


class Trunk(nn.Module):
    """Observations to features, with the states of a recurrent cell if there is one.

    Args:
        encoder: observations ``[B, ...]`` to vectors ``[B, width]``: any module. Sequences are flattened to one batch
            dimension for it. If it has a method ``observe``, that is called with each batch after learning from it,
            for running statistics.
        core: from there to the features: a :class:`RecurrentModule`, or any module, which then has no states.
        combine: ``(core's output, encoder's output)`` to features; None for the core's output.
        preprocess: applied to observations before the encoder; None for nothing.
    """

    def __init__(
        self,
        encoder: nn.Module,
        core: nn.Module | None = None,
        combine: nn.Module | None = None,
        preprocess: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.preprocess = nn.Identity() if preprocess is None else preprocess
        self.encoder = encoder
        self.core = nn.Identity() if core is None else core
        self.combine = combine
        self.state_keys: list[NestedKey] = core.state_keys if isinstance(core, RecurrentModule) else []

    @property
    def state_shapes(self) -> dict[NestedKey, tuple[int, ...]]:
        """The shape ``[layers, ...]`` of each state, by its name."""
        core = self.core
        if not isinstance(core, RecurrentModule):
            return {}
        return dict(zip(self.state_keys, state_shapes(core.cell, core.layers), strict=True))

    def sequence(self, observation: Any, state: State, is_init_BT: Tensor | None) -> tuple[Tensor, NewState]:
        """Features and new states of sequences; see :meth:`recurrl.policy.Policy.sequence`."""
        core = partial(self.core.run, sequence=True) if isinstance(self.core, RecurrentModule) else self.core
        return self._run(self._encode_sequences, core, self.combine, observation, state, is_init_BT)

    def stepper(self) -> Callable[[Any, State, Tensor | None], tuple[Tensor, NewState]]:
        """A function that does one step; see :meth:`recurrl.policy.Policy.stepper`."""
        core = self.core.stepper() if isinstance(self.core, RecurrentModule) else as_function(self.core)
        combine = None if self.combine is None else as_function(self.combine)
        return partial(self._run, chain([self.preprocess, self.encoder]), core, combine)

    def observe(self, observation: Any) -> None:
        """Adds observations ``[B, T, ...]`` to the running statistics, if there are any."""
        observe(self.preprocess, observation)
        observe(self.encoder, _flatten(self.preprocess(observation))[0])

    def _encode_sequences(self, observation: Any) -> Tensor:
        flat, batch = _flatten(self.preprocess(observation))
        return self.encoder(flat).unflatten(0, batch)

    def _run(
        self,
        encode: Callable[[Any], Tensor],
        core: Callable[..., Any],
        combine: Callable[[Tensor, Tensor], Tensor] | None,
        observation: Any,
        state: State,
        is_init: Tensor | None,
    ) -> tuple[Tensor, NewState]:
        encoded = encode(observation)
        new_state: NewState = {}
        if self.state_keys:
            output, new = core(encoded, is_init, tuple([state[key] for key in self.state_keys]))
            new_state = dict(zip(self.state_keys, new, strict=True))
        else:
            output = core(encoded)
        return (output if combine is None else combine(output, encoded)), new_state


def _flatten(observation: Any) -> tuple[Any, Size]:
    """Observations ``[B, T, ...]`` as ``[B · T, ...]``, and ``(B, T)``."""
    if isinstance(observation, Tensor):
        return observation.flatten(0, 1), observation.shape[:2]
    flat = {name: _flatten(entry) for name, entry in observation.items()}
    return {name: entry for name, (entry, _) in flat.items()}, next(iter(flat.values()))[1]


class AddNorm(nn.Module):
    """The core's output plus its input (``residual``), with layer normalisation (``layer_norm``).

    If their widths differ, the input passes a linear layer without bias first (He et al. 2016,
    https://arxiv.org/abs/1512.03385, equation 2).
    """

    def __init__(self, width: int, hidden: int, residual: bool, layer_norm: bool) -> None:
        super().__init__()
        self.residual = residual
        self.shortcut: nn.Module = nn.Identity()
        if residual and width != hidden:
            self.shortcut = linear(width, hidden, gain=1.0, bias=False)
        self.norm: nn.Module = nn.LayerNorm(hidden) if layer_norm else nn.Identity()

    def forward(self, output: Tensor, encoded: Tensor) -> Tensor:
        """Features ``[B, hidden]``."""
        features: Tensor = self.norm(output + self.shortcut(encoded) if self.residual else output)
        return features


def cell_of(config: TrainConfig) -> Cell | None:
    """The configured cell; None for a feed-forward network.

    Raises:
        ConfigError: there is no such cell.
    """
    if config.cell.name == NO_CELL:
        return None
    cell = factory("cell", config.cell.name)(config.cell)
    require(
        isinstance(cell, Cell),
        f"cell.name={config.cell.name} makes a {type(cell).__name__}. Give a class derived from "
        "recurrl.recurrent.Cell, or a function that returns one of its objects.",
    )
    require(
        cell.hidden_size == config.cell.hidden_size,
        f"cell.name={config.cell.name} has hidden_size={cell.hidden_size}, but its options say "
        f"cell.hidden_size={config.cell.hidden_size}. Use the size in the options.",
    )
    return cell


def make_trunk(config: TrainConfig, observation: TensorSpec, cell: Cell | None, prefix: str = "") -> Trunk:
    """The configured trunk, with ``cell.hidden_size`` features.

    Args:
        config: the configuration.
        observation: the spec of an unbatched observation.
        cell: the recurrent cell; None puts a feed-forward network in its place.
        prefix: put before the names of its states, which tells them from those of another trunk.

    Raises:
        ConfigError: the observation is of a kind that the configured encoders cannot handle.
    """
    preprocess, preprocessed = make_preprocessing(observation, config.env.normalize_observation)
    encoder, width = make_encoder(config.encoder, preprocessed)
    combine = None
    if config.policy.residual or config.policy.layer_norm:
        combine = AddNorm(width, config.cell.hidden_size, config.policy.residual, config.policy.layer_norm)
    core = _feedforward(config, width) if cell is None else _recurrent(config, width, cell, prefix)
    return Trunk(encoder, core, combine, preprocess)


def _feedforward(config: TrainConfig, width: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(config.cell.num_layers):
        layers += [linear(width, config.cell.hidden_size, TANH_GAIN), nn.Tanh()]
        width = config.cell.hidden_size
    return nn.Sequential(*layers)


def _recurrent(config: TrainConfig, width: int, cell: Cell, prefix: str) -> RecurrentModule:
    states = [f"{prefix}recurrent_state{suffix}" for suffix in cell.states()]
    module = RecurrentModule(
        cell,
        width,
        num_layers=config.cell.num_layers,
        recurrent_backend=config.backend.name,
        recurrent_recompute=config.recompute.name,
        recurrent_chunk_len=config.recompute.chunk_len,
        recurrent_matmul_precision=config.precision.name,
        in_keys=["encoded", *states],
        out_keys=["features", *(("next", state) for state in states)],
        device=config.device,
    )
    if isinstance(cell, GatedCell):
        _initialize_gates(cell, module)
    return module


def _initialize_gates(cell: GatedCell, module: RecurrentModule) -> None:
    for name, parameter in module.layers.named_parameters():
        if name.startswith("weight"):
            for gate in parameter.data.chunk(cell.GATES):
                nn.init.orthogonal_(gate)
        else:
            nn.init.zeros_(parameter)
