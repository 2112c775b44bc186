"""No step of a rollout and no gradient step waits for a GPU, and none mixes its tensors with the host's."""

import inspect
from contextlib import closing

import numpy as np
import pytest
import torch
from device_sync import GPU, Nowhere, Waits, fake_gpu, moved
from tasks import CUE, FROM_INFO, KINDS, MASKED
from torch.utils._pytree import tree_leaves

from recurrl import build, evaluation
from recurrl.agent import Agent
from recurrl.algorithms import algorithm as algorithm_module
from recurrl.build import make_algorithm, make_policy_for
from recurrl.collector import single as rollout_module
from recurrl.collector.single import RolloutSpec, SingleCollector
from recurrl.envs.policy_env import PolicyEnv
from recurrl.envs.source import source_of
from recurrl.recurrent import segments
from recurrl.recurrent.cells import cell_names, lmu

PACKED = "segments.py"
"""It finds segments on the host, for kernels that do not take resets."""
VARIANTS = [
    (),
    ("algorithm.critic=recurrent",),
    ("algorithm.clip_value=0.2", "algorithm.normalize_advantage=minibatch"),
    *(("buffer=on_policy",), ("state=zero",), ("state=burn_in",), ("state=refresh",)),
    ("env.normalize_reward=true", "env.normalize_observation=true"),
    ("algorithm=grpo", "algorithm.group_size=2"),
]
CELLS = [(f"cell={name}",) for name in cell_names()]


class NoOpOptimizer(torch.optim.Adam):
    """An optimizer that takes no steps: fused ones are a kernel, and have none for this device."""

    def __init__(self, parameters, lr, eps, fused):
        super().__init__(parameters, lr=lr, eps=eps)

    def step(self, closure=None):
        """Nothing."""


@pytest.fixture
def on(monkeypatch, small):
    """The configuration, and rollouts on a device."""

    def on(device, *overrides):
        config = small("env=t_maze", *overrides)
        monkeypatch.setattr(rollout_module, "make_batched_env", lambda env, n, *_: PolicyEnv(Nowhere(n, device), env))
        return config, lambda policy, steps: SingleCollector(RolloutSpec(config.env, policy, 4 * steps, 0))

    monkeypatch.setattr(algorithm_module, "OPTIMIZERS", {"adam": NoOpOptimizer})
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)  # raises for a device without it
    return on


def waits_of(call, *arguments):
    """What a call returns, and how often it waited."""
    with Waits() as waits:
        returned = call(*arguments)
    return returned, waits.places


def waits_of_gradient_steps(algorithm, rows):
    """Where the gradient steps on rows wait, after the first, which is checked."""
    for key in ("advantage", "value_target", "loss_mask"):
        rows.set(key, torch.ones(*rows.shape, 1, device="meta", dtype=torch.bool if key == "loss_mask" else None))
    if algorithm.options.name != "grpo":
        del rows["loss_mask"]
    places = []
    algorithm.states.set_rows(rows)
    for slices in algorithm.buffer.minibatches(rows):
        with Waits() as waits:
            algorithm.states.set_initial_states(slices)
            algorithm.gradient_step(slices)
        places.append(set(waits.places))
    return places[1:]


MEASURED = [
    *(("backend=reference", *each) for each in (*VARIANTS, *CELLS)),
    *(("backend=pad", *each) for each in ((), ("algorithm.critic=recurrent",), ("state=refresh",))),
    *(("backend=scan",), ("cell=none",)),
]


@pytest.mark.parametrize("overrides", MEASURED, ids=" ".join)
def test_steps_wait_for_nothing_but_packing_for_kernels_without_resets(on, overrides):
    config, rollout = on("meta", *overrides)
    policy = make_policy_for(config).to("meta")
    few, short = waits_of(rollout(policy, 4).collect)
    rows, long = waits_of(rollout(policy, 8).collect)
    assert short == long  # whatever the rollout as a whole reads, its steps do not
    algorithm = make_algorithm(config, policy)
    prepared = [waits_of(algorithm.prepare, of, of["next", "reward"].squeeze(-1)) for of in (few, rows.clone())]
    assert prepared[0][1] == prepared[1][1]
    packs = {"backend=pad", "backend=scan"} & set(overrides)
    assert waits_of_gradient_steps(algorithm, rows) == [{PACKED} if packs else set()]


def test_what_waits_is_noted():
    values = torch.ones(3, device="meta")
    for read in (
        values[0].item,
        lambda: bool(values.any()),
        values.tolist,
        values.nonzero,
        lambda: values[values > 0],
        lambda: values.masked_fill_(values > 0, 0.0)[values > 0],
        values.cpu,
        lambda: torch.zeros(3).copy_(values),
    ):
        with Waits() as waits:
            read()
        assert waits.places.total() == 1, read


USED = {
    **KINDS,
    "critic that sees": (CUE, ("env.mask=[1]", "algorithm.critic_observation=[privileged]"), {}),
    "masked in info": (MASKED, (FROM_INFO,), {"mask_in": "info", "action": "discrete"}),
    "masked in observation": (MASKED, (), {"mask_in": "observation", "action": "discrete"}),
}
MASKED_CHOICES = (MASKED, (), {"mask_in": "observation", "action": "multi_discrete"})


@pytest.fixture
def on_gpu(small, monkeypatch):
    """A configuration, and its policy on a fake GPU. The environments are on a device, and nothing is in them."""

    def on_gpu(device, env_id, *overrides, **kwargs):
        config = small("env=gym", "env.packages=[tasks]", f"env.id={env_id}", *overrides, **kwargs)
        config.device = "cuda:0"
        with closing(source_of(config.env).plain()) as plain:
            spaces = plain.observation_space, plain.action_space

        def make_batched_env(env, count, seed, group_size=None, privileged=False):
            return PolicyEnv(Nowhere(count, device, *spaces, env.action_mask_from_info), env, privileged)

        for module in (build, rollout_module, evaluation):
            monkeypatch.setattr(module, "make_batched_env", make_batched_env)
        with fake_gpu():
            return config, make_policy_for(config)

    def without_resets(rows_and_steps, starts, device):
        first = np.zeros(rows_and_steps, bool)
        first[:, 0] = True
        return packing_of(rows_and_steps, first.tobytes(), device)

    packing_of = segments._packing_of
    monkeypatch.setattr(segments, "_packing_of", without_resets)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.nn.Module, "to", moved)
    monkeypatch.setattr(algorithm_module, "OPTIMIZERS", {"adam": NoOpOptimizer})
    monkeypatch.setattr(lmu, "legendre", lmu.legendre.__wrapped__)  # its cache holds values, and must keep them
    return on_gpu


def collected(config, policy):
    """A rollout of eight steps on the fake GPU, and where it waited."""
    with fake_gpu():
        collector = SingleCollector(RolloutSpec(config.env, policy, 32, 0))
    with fake_gpu() as places:
        rows = collector.collect()
    assert {value.device for value in rows.values(True, True)} == {GPU} == {rows.device}
    return rows, places


def updated(config, policy, rows, monkeypatch):
    """The losses of an update with rows, and where it waited. Backward passes do not run on a fake GPU."""
    losses = []
    with fake_gpu() as places:
        algorithm = make_algorithm(config, policy)

        def backward(total):
            losses.append(total)
            for parameter in algorithm.parameters():
                parameter.grad = torch.zeros_like(parameter)

        monkeypatch.setattr(torch.Tensor, "backward", backward)
        algorithm.update(rows, 0.0)
    return losses, places


needs_cuda_build = pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")
EVERYTHING = [
    *((f"backend={backend}", *each) for backend in ("reference", "scan") for each in CELLS),
    *(("backend=pad", f"cell={cell}", *each) for cell in ("gru", "lstm") for each in VARIANTS),
]


@needs_cuda_build
@pytest.mark.parametrize("overrides", EVERYTHING, ids=" ".join)
def test_rollout_and_update_are_on_the_policys_gpu(on_gpu, monkeypatch, overrides):
    config, policy = on_gpu(GPU, CUE, "env.max_episode_steps=8", *overrides)
    rows, _ = collected(config, policy)
    losses, _ = updated(config, policy, rows, monkeypatch)
    assert {loss.device for loss in losses} == {GPU}


EVERYWHERE = [
    # The numbers of several choices are values of a spec, and those of one on a fake GPU are lost.
    *(pytest.param(GPU, USED[name], id=f"{name}, on the GPU") for name in USED if name != "does multi_discrete"),
    *(pytest.param(torch.device("cpu"), kind, id=f"{name}, on the host") for name, kind in USED.items()),
    pytest.param(torch.device("cpu"), MASKED_CHOICES, id="masked choices, on the host"),
]


@needs_cuda_build
@pytest.mark.parametrize(("device", "kind"), EVERYWHERE)
def test_every_kind_of_space_is_used_on_the_policys_gpu(on_gpu, monkeypatch, device, kind):
    env_id, overrides, kwargs = kind
    config, policy = on_gpu(device, env_id, "backend=pad", *overrides, **kwargs)
    with fake_gpu():
        agent = Agent(policy, config.env)
    parts = len(agent.step.interface.parts)
    sent = parts if device != GPU else 0  # parts of the action that a step sends to the environments

    rows, places = collected(config, policy)
    assert places.keys() == {"single.py", "policy_env.py"}  # for checks of the whole rollout
    assert places["single.py"] == 1 + 8 * sent

    losses, places = updated(config, policy, rows, monkeypatch)
    assert {loss.device for loss in losses} == {GPU}
    assert places[PACKED] == len(losses) + 1  # lengths of segments, once for each sequence; the last is for the drift

    numbers = sum(value.is_floating_point() for value in tree_leaves(rows["next", "observation"]))
    checks = {"policy_env.py": 1 + numbers, "evaluation.py": 1}  # of reward and observation, and whether all have ended
    evaluate = inspect.unwrap(evaluation.evaluate)  # random numbers of a fake GPU cannot be restored
    by_steps = []
    for steps in (2, 3):
        monkeypatch.setattr(evaluation, "MAX_STEPS", steps)
        with fake_gpu() as places, torch.no_grad():
            assert len(evaluate(config.env, policy, 4, 0, evaluation.SHUFFLED, deterministic=False)) == 4
        by_steps.append(places)
    assert by_steps[1] - by_steps[0] == (checks if device == GPU else {"evaluation.py": sent})

    seen = agent.observation_space.sample()
    if isinstance(seen, dict) and "action_mask" in seen:
        seen["action_mask"][:] = 1
    with fake_gpu() as places:
        state = agent.initial_state()
        for deterministic in (True, False):
            _, state = agent.act(seen, state, deterministic=deterministic, reward=0.0, action_mask=np.ones(6))
    assert places == {"agent.py": 2 * parts}  # the parts of the action
    assert {value.device for value in state.tensors.values()} == {GPU}
