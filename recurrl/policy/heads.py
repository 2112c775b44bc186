"""From features to actions: the head and the distribution of each kind of action.

Shape legend: B batch (any number of dimensions), A action entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import InteractionType, ProbabilisticTensorDictModule, TensorDictModule
from tensordict.nn.probabilistic import interaction_type
from torch import Tensor, nn
from torch.distributions import Distribution
from torchrl.data import Binary, Bounded, Categorical, Composite, TensorSpec

from recurrl.config import TrainConfig
from recurrl.errors import ConfigError
from recurrl.keys import ACTION, ACTION_MASK, FEATURES, LOG_PROB, OBSERVATION, path_of
from recurrl.policy import distributions
from recurrl.policy.initialization import HEAD_GAIN, linear
from recurrl.specs import choices, is_bounded

PARAMETERS = "policy"
"""Above the parameters of the parts of a composite action."""


@dataclass
class Head:
    """What it takes to act: a network of the features, the names of its outputs, and the distribution over them."""

    network: nn.Module
    parameters: tuple[str, ...]
    distribution: Callable[..., Distribution]


def make_actor(
    config: TrainConfig, observation: TensorSpec, action: TensorSpec
) -> tuple[TensorDictModule, ProbabilisticTensorDictModule]:
    """The actor's head and its sampler, for unbatched specs.

    Raises:
        ConfigError: the environment gives a mask that does not fit its actions.
    """
    mask = observation.get(ACTION_MASK, None) if isinstance(observation, Composite) else None
    if isinstance(action, Composite):
        if mask is not None:
            raise ConfigError(
                f"The environment gives an action mask, but its actions are {action}. Masks go with one discrete or "
                "multi-discrete action. Remove action_mask from what the environment gives, or flatten its actions."
            )
        return _make_composite(config, action)
    head = _make_head(config, action)
    in_keys: dict[str, NestedKey] = {name: name for name in head.parameters}
    if mask is not None:
        _check_mask(mask, action)
        in_keys["mask"] = (OBSERVATION, ACTION_MASK)
    module = TensorDictModule(head.network, in_keys=[FEATURES], out_keys=list(head.parameters))
    return module, _sampler(ProbabilisticTensorDictModule, in_keys, head.distribution)


def _check_mask(mask: TensorSpec, action: TensorSpec) -> None:
    if isinstance(action, Binary) or not isinstance(action, Categorical):
        raise ConfigError(
            f"The environment gives an action mask, but its action is {action}. Masks go with discrete and "
            "multi-discrete actions. Remove action_mask from what the environment gives."
        )
    size = sum(choices(action) or (int(action.space.n),))
    if tuple(mask.shape) != (size,):
        raise ConfigError(
            f"The environment's action mask has the shape {tuple(mask.shape)}, but its actions have {size} choices "
            f"in all. Give a mask of the shape ({size},): one entry a choice, those of a multi-discrete action one "
            "after the other."
        )


def _make_composite(config: TrainConfig, action: Composite) -> tuple[TensorDictModule, ProbabilisticTensorDictModule]:
    parts = dict(action.items(include_nested=True, leaves_only=True))
    heads = {key: _make_head(config, spec) for key, spec in parts.items()}
    keys = [(PARAMETERS, *path_of(part), name) for part, head in heads.items() for name in head.parameters]
    module = TensorDictModule(Heads([head.network for head in heads.values()]), in_keys=[FEATURES], out_keys=keys)
    joint = JointOfParts([(part, head.parameters, head.distribution) for part, head in heads.items()])
    return module, _sampler(CompositeSampler, {"/".join(key[1:]): key for key in keys}, joint)


class Heads(nn.Module):
    """The heads of the parts of a composite action."""

    def __init__(self, heads: list[nn.Module]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        """The parameters of all parts, in order."""
        found: list[Tensor] = []
        for head in self.heads:
            parameters = head(features)
            found += [parameters] if isinstance(parameters, Tensor) else parameters
        return tuple(found)


class JointOfParts:
    """Makes the distribution of a composite action from ``part/parameter`` keywords.

    Args:
        parts: key, names of the parameters, and distribution of each part.
    """

    def __init__(self, parts: list[tuple[NestedKey, tuple[str, ...], Callable[..., Distribution]]]) -> None:
        self.parts = parts

    def __call__(self, **parameters: Tensor) -> Distribution:
        """The joint distribution."""
        return distributions.Joint(
            {
                key: make(**{name: parameters["/".join((*path_of(key), name))] for name in names})
                for key, names, make in self.parts
            }
        )


class CompositeSampler(ProbabilisticTensorDictModule):
    """Samples an action of several parts, a nested TensorDict, and writes the log-probability of the whole."""

    def forward(
        self, tensordict: TensorDictBase, tensordict_out: TensorDictBase | None = None, _requires_sample: bool = True
    ) -> TensorDictBase:
        """Writes action and log-probability; of the action that is there, without ``_requires_sample``."""
        result = tensordict if tensordict_out is None else tensordict_out
        distribution = self.get_dist(tensordict)
        if _requires_sample:
            random = interaction_type() is InteractionType.RANDOM
            result.set(ACTION, distribution.sample() if random else distributions.deterministic(distribution))
        return result.set(LOG_PROB, distribution.log_prob(result[ACTION]))


def _make_head(config: TrainConfig, action: TensorSpec) -> Head:
    hidden = config.cell.hidden_size
    # TorchRL's specs of bits and of several choices are special cases of that of one choice.
    if isinstance(action, Binary):
        network = _shaped(linear(hidden, action.shape.numel(), HEAD_GAIN), action)
        return Head(network, ("logits",), partial(distributions.Binary, event_dims=len(action.shape)))
    sizes = choices(action)
    if sizes is not None:
        logits = linear(hidden, sum(sizes), HEAD_GAIN)
        return Head(logits, ("logits",), partial(distributions.multi_categorical, sizes))
    if isinstance(action, Categorical):
        return Head(linear(hidden, int(action.space.n), HEAD_GAIN), ("logits",), distributions.categorical)
    squashed = config.policy.bounded_action == "tanh" and is_bounded(action)
    if config.policy.bounded_action == "tanh" and not squashed and _is_bounded_in_part(action):
        raise ConfigError(
            f"policy.bounded_action=tanh squashes all {action.shape.numel()} entries of an action, but some lack "
            "a bound. Give policy.bounded_action=clip, or let the environment bound all of them."
        )
    distribution: Any = distributions.SquashedGaussian if squashed else distributions.diagonal_gaussian
    network = GaussianHead(hidden, tuple(action.shape), config.policy.initial_std)
    return Head(network, ("loc", "scale"), partial(distribution, event_dims=len(action.shape)))


def _is_bounded_in_part(action: TensorSpec) -> bool:
    bounds = (
        [bound.isfinite() for bound in (action.space.low, action.space.high)] if isinstance(action, Bounded) else []
    )
    return any(bool(finite.any()) for finite in bounds)


def _shaped(layer: nn.Linear, action: TensorSpec) -> nn.Module:
    if len(action.shape) == 1:
        return layer
    return nn.Sequential(layer, nn.Unflatten(-1, tuple(action.shape)))


def _sampler(
    kind: type[ProbabilisticTensorDictModule], in_keys: dict[str, NestedKey], distribution: Callable[..., Distribution]
) -> ProbabilisticTensorDictModule:
    return kind(
        in_keys=in_keys,
        out_keys=[ACTION],
        distribution_class=distribution,
        return_log_prob=True,
        log_prob_key=LOG_PROB,
    )


class GaussianHead(nn.Module):
    """Mean by a linear map of the features, and a learned standard deviation that does not depend on them.

    Args:
        hidden: features.
        shape: of an action.
        initial_std: standard deviation before training.
    """

    def __init__(self, hidden: int, shape: tuple[int, ...], initial_std: float) -> None:
        super().__init__()
        self.mean = linear(hidden, math.prod(shape), HEAD_GAIN)
        self.log_std = nn.Parameter(torch.full(shape, math.log(initial_std)))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, ``[B, *shape]`` each."""
        mean = self.mean(features)
        if self.log_std.ndim != 1:
            mean = mean.unflatten(-1, self.log_std.shape)
        return mean, self.log_std.exp().expand_as(mean)
