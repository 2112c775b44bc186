"""No step of a rollout and no gradient step waits for a GPU, and none mixes its tensors with the host's."""

from collections import Counter
from dataclasses import fields, replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.data import Categorical, Composite, Unbounded
from waiting import Nowhere, Waits

from recurrl.algorithms import algorithm as algorithm_module
from recurrl.build import make_algorithm, make_policy_for
from recurrl.collector import single as rollout_module
from recurrl.collector.single import RolloutSpec, SingleCollector
from recurrl.envs.policy_env import PolicyEnv
from recurrl.policy import make_policy
from recurrl.recurrent.cells import cell_names, lmu
from recurrl.recurrent.segments import Segments

GPU, FAKE = torch.device("cuda", 0), FakeTensorMode()
PACKED = "segments.py"
"""It finds segments on the host, for kernels that do not take resets."""
VARIANTS = {
    "none": (),
    "two critics": ("algorithm.critic=recurrent",),
    "all of PPO's terms": ("algorithm.clip_value=0.2", "algorithm.normalize_advantage=minibatch"),
    "vtrace": ("algorithm.advantage=vtrace",),
    "zero": ("state=zero",),
    "burn-in": ("state=burn_in",),
    "refresh": ("state=refresh",),
    "normalised": ("env.normalize_reward=true", "env.normalize_observation=true"),
    "grpo": ("algorithm=grpo", "algorithm.group_size=2"),
}


class Still(torch.optim.Adam):
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
        monkeypatch.setattr(
            rollout_module, "make_batched_env", lambda env, count, *_: PolicyEnv(Nowhere(count, device), env)
        )
        return config, lambda policy, steps: SingleCollector(RolloutSpec(config.env, policy, 4 * steps, 0))

    monkeypatch.setattr(algorithm_module, "OPTIMIZERS", {"adam": Still})
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)  # raises for a device without it
    return on


def rows_of(rollout):
    """The next rollout, and how often it waited."""
    with Waits() as waits:
        rows = rollout.collect()
    return rows, waits.places


def per_gradient_step(algorithm, rows):
    """How often gradient steps on rows wait, each file of the package for itself."""
    for key in ("advantage", "value_target", "loss_mask"):
        rows.set(key, torch.ones(*rows.shape, 1, device="meta", dtype=torch.bool if key == "loss_mask" else None))
    if algorithm.options.name != "grpo":
        del rows["loss_mask"]
    found = Counter()
    algorithm.states.set_rows(rows)
    for slices in algorithm.buffer.minibatches(rows):
        with Waits() as waits:
            algorithm.states.set_initial_states(slices)
            algorithm.gradient_step(slices)
        found |= waits.places
    return found


@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("backend", ["reference", "scan", "pad"])
def test_steps_wait_for_nothing_but_the_packing_of_kernels_that_do_not_take_resets(on, backend, overrides):
    config, rollout = on("meta", f"backend={backend}", *overrides)
    policy = make_policy_for(config).to("meta")
    _, short = rows_of(rollout(policy, 8))
    rows, long = rows_of(rollout(policy, 16))
    assert short == long  # whatever the rollout as a whole reads, its steps do not
    algorithm = make_algorithm(config, policy)
    per_gradient_step(algorithm, rows.clone())  # the first is checked
    assert set(per_gradient_step(algorithm, rows)) == ({PACKED} if backend != "reference" else set())


@pytest.mark.parametrize("cell", ["none", *cell_names()])
def test_no_cell_waits(on, cell):
    config, rollout = on("meta", f"cell={cell}", *([] if cell == "none" else ["backend=reference"]))
    policy = make_policy_for(config).to("meta")
    rows, long = rows_of(rollout(policy, 8))
    assert rows_of(rollout(policy, 16))[1] == long
    assert not per_gradient_step(make_algorithm(config, policy), rows)


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


class Answered(TorchDispatchMode):
    """Answers a fake GPU's values with true."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            return True
        return func(*args, **(kwargs or {}))


@pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")
@pytest.mark.parametrize("overrides", [*VARIANTS.values(), *((f"cell={name}",) for name in cell_names())], ids=" ".join)
@pytest.mark.parametrize("backend", ["reference", "scan"])
def test_rollout_and_loss_are_on_the_policys_gpu(on, monkeypatch, backend, overrides):
    config, rollout = on(GPU, f"backend={backend}", *overrides)
    config.device = "cuda:0"
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, *_, **__: module)  # is made there; cannot be moved
    monkeypatch.setattr(lmu, "legendre", lmu.legendre.__wrapped__)  # its cache holds values, and must keep them
    packing = Segments(torch.zeros(4, 4, dtype=torch.bool)).packing  # of a minibatch without resets
    with FAKE, Answered():
        indices = {each.name: getattr(packing, each.name) for each in fields(packing) if each.type == "Tensor"}
        there = {name: torch.zeros(index.shape, dtype=torch.long, device=GPU) for name, index in indices.items()}
        monkeypatch.setattr(Segments, "packing", replace(packing, **there))
        with GPU:
            observation = Composite(observation=Unbounded((3,), device=GPU))
            policy = make_policy(config, observation, Categorical(4, device=GPU))
            algorithm = make_algorithm(config, policy)
        rows = rollout(policy, 8).collect()
        assert {value.device for value in rows.values(True, True)} == {GPU} == {rows.device}
        for key in ("advantage", "value_target"):
            rows.set(key, torch.zeros(*rows.shape, 1, device=GPU))
        algorithm.states.set_rows(rows)
        for slices in algorithm.buffer.minibatches(rows):
            algorithm.states.set_initial_states(slices)
            losses = algorithm.loss(slices, policy.sequence(*policy.inputs(slices)))
            assert {term.device for term in losses.terms.values()} == {GPU}
