"""From observations to features: an encoder, followed by a recurrent cell or a feed-forward network.

Shape legend: B rows, T steps.
"""

from collections.abc import Mapping
from typing import Any

from tensordict import NestedKey
from torch import Size, Tensor, nn

from recurrl.policy.initialization import linear
from recurrl.policy.normalization import observe
from recurrl.recurrent import RecurrentModule
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

    def step(self, observation: Any, state: State) -> tuple[Tensor, NewState]:
        """Features and new states of one step; see :meth:`recurrl.policy.Policy.step`."""
        return self._features(self.encoder(self.preprocess(observation)), state, None, sequence=False)

    def sequence(self, observation: Any, state: State, is_init_BT: Tensor | None) -> tuple[Tensor, NewState]:
        """Features and new states of sequences; see :meth:`recurrl.policy.Policy.sequence`."""
        flat, batch = _flatten(self.preprocess(observation))
        return self._features(self.encoder(flat).unflatten(0, batch), state, is_init_BT, sequence=True)

    def observe(self, observation: Any) -> None:
        """Adds observations ``[B, T, ...]`` to the running statistics, if there are any."""
        observe(self.preprocess, observation)
        observe(self.encoder, _flatten(self.preprocess(observation))[0])

    def _features(
        self, encoded: Tensor, state: State, is_init: Tensor | None, sequence: bool
    ) -> tuple[Tensor, NewState]:
        new_state: NewState = {}
        if isinstance(self.core, RecurrentModule):
            entering = tuple([state[key] for key in self.state_keys])
            output, new = self.core.run(encoded, is_init, entering, sequence)
            new_state = dict(zip(self.state_keys, new, strict=True))
        else:
            output = self.core(encoded)
        return (output if self.combine is None else self.combine(output, encoded)), new_state


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
        return self.norm(output + self.shortcut(encoded) if self.residual else output)
