"""Compares an exported step with the policy's own.

Shape legend: B batch.
"""

from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import torch

from recurrl.agent import Agent
from recurrl.agent.named_arrays import NEXT, NOISE_INPUT, Tensors
from recurrl.errors import ConfigError
from recurrl.keys import ACTION_MASK, NOISE, PREVIOUS_ACTION
from recurrl.recurrent.module.keys import IS_INIT

STEPS = 200
TOLERANCE = 1e-5
"""Largest allowed difference of an output, relative to its largest magnitude, or to 1 if that is smaller."""
RESETS = 0.02
"""Probability that a step begins an episode."""

Call = Callable[[Tensors], Tensors]


@torch.no_grad()
def recorded_inputs(agent: Agent, sampled: bool = False) -> Tensors:
    """The policy's inputs in :data:`STEPS` steps of one environment, ``[STEPS, ...]``, with random resets.

    Args:
        agent: the policy.
        sampled: add random noise, as for sampled actions.
    """
    state = agent.initial_state()
    rows: list[Tensors] = []
    reward: Any = 0.0
    begins = True
    with closing(agent.make_env()) as env:
        observation, info = env.reset(seed=0)
        for _ in range(STEPS):
            extra: dict[str, Any] = {"reward": reward, "action_mask": info.get(ACTION_MASK)}
            rows.append(agent.inputs(observation, state, begins, **extra))
            action, state = agent.act(observation, state, begins, **extra)
            observation, reward, terminated, truncated, info = env.step(action)
            begins = terminated or truncated
            if begins:
                observation, info = env.reset()
    inputs = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    generator = torch.Generator().manual_seed(0)
    inputs[IS_INIT] = torch.rand(STEPS, generator=generator) < RESETS
    is_correlated = inputs.pop(NOISE, None) is not None
    if sampled:
        names = [NOISE_INPUT, NOISE] if is_correlated else [NOISE_INPUT]
        inputs |= {name: torch.randn(STEPS, agent.policy.noise_size, generator=generator) for name in names}
    return inputs


@torch.no_grad()
def largest_difference(step: Call, call: Call, batches: Iterable[Tensors]) -> float:
    """The largest difference between the outputs of two steps for the same inputs.

    It is relative to the largest magnitude of an output, or to 1 if that is smaller. Discrete actions that differ are
    counted instead, because rounding may decide a tie either way.

    Raises:
        ConfigError: discrete actions differ more often than ties explain.
    """
    differences: dict[str, float] = {}
    scales: dict[str, float] = {}
    wrong = choices = 0
    for inputs in batches:
        ours, exported = step(inputs), call(inputs)
        for name, value in ours.items():
            if not value.is_floating_point():
                wrong += int((exported[name] != value).sum())
                choices += value.numel()
            elif name != NEXT + PREVIOUS_ACTION:  # the action, which may be a tie
                off = (exported[name].double() - value.double()).abs().nan_to_num(torch.inf).max().item()
                differences[name] = max(differences.get(name, 0.0), off)
                # The logits of actions that are not allowed would hide any difference in those of the others.
                allowed = value[value > torch.finfo(value.dtype).min].abs()
                scales[name] = max([scales.get(name, 1.0), *allowed.flatten().tolist()])
    difference = max((differences[name] / scales[name] for name in differences), default=0.0)
    if difference <= TOLERANCE and wrong > choices / 1000:
        raise ConfigError(f"{wrong} of {choices} actions are not the policy's.")
    return difference
