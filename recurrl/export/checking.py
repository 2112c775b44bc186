"""Compares an exported step with the policy's own.

Shape legend: B batch.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import torch

from recurrl.agent import Agent
from recurrl.agent.named_arrays import Tensors
from recurrl.agent.step import NEXT, NOISE_INPUT, Step
from recurrl.errors import ConfigError
from recurrl.export.layouts import outputs_by_state
from recurrl.keys import ACTION_MASK, PREVIOUS_ACTION, PREVIOUS_REWARD
from recurrl.recurrent.module.keys import IS_INIT

TOLERANCE = 1e-5
"""Largest allowed difference of an output, relative to its largest magnitude, or to 1 if that is smaller."""
RESETS = 0.02
"""Probability that a step begins an episode."""

Call = Callable[[Tensors], Tensors]


@torch.no_grad()
def recorded_inputs(agent: Agent, steps: int) -> Tensors:
    """The policy's inputs in ``steps`` steps of one environment, ``[steps, ...]``."""
    state = agent.initial_state()
    rows: list[Tensors] = []
    reward: Any = 0.0
    begins = True
    with closing(agent.make_env()) as env:
        observation, info = env.reset(seed=0)
        for _ in range(steps):
            extra: dict[str, Any] = {"reward": reward, "action_mask": info.get(ACTION_MASK)}
            rows.append(agent.inputs(observation, state, begins, **extra))
            action, state = agent.act(observation, state, begins, **extra)
            observation, reward, terminated, truncated, info = env.step(action)
            begins = terminated or truncated
            if begins:
                observation, info = env.reset()
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


def examples(step: Step, pool: Tensors, batch: int, sampled: bool = False) -> Iterator[Tensors]:
    """Endless inputs of ``batch`` environments: random rows of the pool, with the states of an episode's first step."""
    generator = torch.Generator().manual_seed(0)
    while True:
        rows_B = torch.randint(len(pool[IS_INIT]), (batch,), generator=generator)
        states = {name: torch.zeros(batch, *shape) for name, shape in step.state_shapes(sampled).items()}
        inputs = {name: values[rows_B] for name, values in pool.items() if name not in step.state_shapes(sampled=True)}
        inputs[IS_INIT] = torch.rand(batch, generator=generator) < RESETS
        if PREVIOUS_REWARD in inputs:
            inputs[PREVIOUS_REWARD] = torch.randn(batch, 1, generator=generator)
        if sampled:
            inputs[NOISE_INPUT] = torch.randn(batch, step.policy.noise_size, generator=generator)
        yield {**inputs, **states}


@torch.no_grad()
def largest_difference(step: Call, call: Call, inputs_of_steps: Iterable[Tensors]) -> float:
    """The largest difference between the outputs of two steps, each continuing from its own states.

    It is relative to the largest magnitude of an output, or to 1 if that is smaller. Discrete actions that differ are
    counted instead, because rounding may decide a tie either way.

    Raises:
        ConfigError: discrete actions differ more often than ties explain.
    """
    differences: dict[str, float] = {}
    scales: dict[str, float] = {}
    states: Tensors = {}
    theirs: Tensors = {}
    wrong = choices = 0
    for inputs in inputs_of_steps:
        # Both get the exported step's previous action: after a tie that fell the other way, all else would differ.
        previous = {name: value for name, value in theirs.items() if name == PREVIOUS_ACTION}
        ours, exported = step({**inputs, **states, **previous}), call({**inputs, **theirs})
        for name, value in ours.items():
            if not value.is_floating_point():
                wrong += int((exported[name] != value).sum())
                choices += value.numel()
            elif name != NEXT + PREVIOUS_ACTION:
                off = (exported[name].double() - value.double()).abs().nan_to_num(torch.inf).max().item()
                differences[name] = max(differences.get(name, 0.0), off)
                # The logits of actions that are not allowed would hide any difference in those of the others.
                allowed = value[value > torch.finfo(value.dtype).min].abs()
                scales[name] = max([scales.get(name, 1.0), *allowed.flatten().tolist()])
        names = outputs_by_state(ours)
        states, theirs = ({state: each[name] for state, name in names.items()} for each in (ours, exported))
    difference = max((differences[name] / scales[name] for name in differences), default=0.0)
    if difference <= TOLERANCE and wrong > choices / 1000:
        raise ConfigError(f"{wrong} of {choices} actions are not the policy's.")
    return difference
