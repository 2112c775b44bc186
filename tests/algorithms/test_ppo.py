"""PPO's loss and its options against TorchRL's, with one policy and critic in float64."""

from functools import partial

import pytest
import torch
from collected import with_rollout
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torchrl.objectives import ClipPPOLoss

from recurrl.algorithms.advantages import gae, next_values, reevaluate, standardized
from recurrl.algorithms.importance import effective_sample_fraction, ratio_metrics
from recurrl.build import make_algorithm, make_policy_for
from recurrl.keys import LOSS_MASK
from recurrl.policy import PolicyModule
from recurrl.recurrent import RecurrentModule

B, T = 4, 6


def make(small, *overrides):
    """Algorithm, policy and a fixed batch, with ratios within and without the clip range."""
    shape = ("cell.hidden_size=4", "encoder.sizes=[4]", "backend=reference", "algorithm.entropy_coeff=0.04")
    config = small(*shape, *overrides)
    torch.manual_seed(0)
    policy = make_policy_for(config).double()
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    random = partial(torch.randn, B, T, dtype=torch.float64)
    states = {key: random(*shape) for key, shape in policy.state_shapes.items()}
    seen = {"observation": random(2), "is_init": torch.rand(B, T, 1) < 0.2, **states}
    batch = TensorDict({**seen, "advantage": random(1), "value_target": random(1)}, [B, T])
    with torch.no_grad():
        distribution, value, *_ = policy.sequence(*policy.inputs(batch))
        batch["action"] = distribution.sample()
    batch["action_log_prob"] = distribution.log_prob(batch["action"]) + 0.3 * random()
    batch["state_value"] = value + 0.5 * random(1)
    return make_algorithm(config, policy), policy, batch


def loss_of(algorithm, batch):
    return algorithm.loss(batch, algorithm.policy.sequence(*algorithm.policy.inputs(batch)))


def flat(algorithm, losses):
    """Terms and metrics by TorchRL's names."""
    metrics = {**losses.metrics, **ratio_metrics(losses.log_ratio.flatten(), None, algorithm.log_clip_range)}
    metrics = {name.removeprefix("policy/").replace("/", "_"): value for name, value in metrics.items()}
    return {**{f"loss_{name}": term for name, term in losses.terms.items()}, **metrics}


def gradients(output, policy):
    total = sum(output[name] for name in sorted(output.keys()) if name.startswith("loss_"))
    return torch.autograd.grad(total, list(policy.parameters()))


def test_encoder_and_cell_run_once_a_minibatch(small, monkeypatch):
    algorithm, policy, batch = make(small)
    calls, run = [], RecurrentModule.run
    policy.trunk.encoder.register_forward_hook(lambda *_: calls.append("encoder"))
    monkeypatch.setattr(RecurrentModule, "run", lambda *a, **k: (calls.append("cell"), run(*a, **k))[1])
    algorithm.backward(batch)
    assert calls == ["encoder", "cell"]


class Critic(TensorDictModuleBase):
    """A policy's critic, as TorchRL's losses call it."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy
        self.in_keys, self.out_keys = PolicyModule(policy).in_keys, ["state_value"]

    def forward(self, tensordict):
        return tensordict.set("state_value", self.policy.sequence(*self.policy.inputs(tensordict)).value)


CASES = {
    "defaults": (),
    "clipped values, advantages by minibatch": ("algorithm.clip_value=0.25", "algorithm.normalize_advantage=minibatch"),
    "clip higher": ("algorithm.entropy_coeff=0.25", "algorithm.clip_epsilon=0.125", "algorithm.clip_epsilon_high=0.5"),
    "recurrent critic": ("algorithm.critic=recurrent",),
    "feed-forward critic": ("algorithm.critic=feedforward",),
}


@pytest.mark.parametrize("env", ["cartpole_no_velocity", "pendulum_no_velocity"])
@pytest.mark.parametrize("overrides", CASES.values(), ids=CASES)
def test_losses_and_gradients_are_those_of_torchrl(overrides, env, small):
    algorithm, policy, batch = make(small, f"env={env}", *overrides)
    options = algorithm.options
    same = {name: getattr(options, name) for name in ("entropy_coeff", "critic_coeff", "clip_value")}
    same["clip_epsilon"] = (options.clip_epsilon, options.clip_epsilon_high or options.clip_epsilon)
    same["normalize_advantage"] = options.normalize_advantage == "minibatch"
    witness = ClipPPOLoss(PolicyModule(policy), Critic(policy), **same, loss_critic_type="l2", functional=False)
    witness.set_keys(value="state_value", sample_log_prob="action_log_prob")
    losses, expected = flat(algorithm, loss_of(algorithm, batch)), witness(batch)
    names = ("loss_objective", "loss_critic", "loss_entropy", "entropy", "clip_fraction")
    ours, theirs = ([*(of[name] for name in names), *gradients(of, policy)] for of in (losses, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


def collected(batch, value_scale):
    """Rows as a collector hands them out, in which all episodes terminate at the end."""
    ended = torch.zeros(B, T, 1, dtype=torch.bool)
    ended[:, -1] = True
    batch = batch.clone().set("state_value", batch["state_value"] * value_scale)
    return batch.set("next", {"done": ended, "terminated": ended, "reward": ended.float(), "step_count": ended.long()})


DISCOUNTS = {
    "no episode has ended": ((), [], 0.995),
    "all have the same length": ((), [(100, 100), (), (100,)], 0.96),
    "short ones": ((), [(40,)], 0.9),
    "shorter ones": ((), [(39,)], 0.995),
    "long ones": ((), [(5000,)], 0.995),
    "some end early": ((), [(100, 100)] * 5 + [(10, 100)], 0.96),
    "too many end early": ((), [(100, 100)] * 5 + [(10, 60)], 0.995),
    "too many ended early at first": ((), [(100,), (20, 20)] + [(100, 100)] * 20, 0.995),
    "they grow longer": ((), [(100, 100), (150,)], 0.995),
    "a larger fraction": (("algorithm.horizon_fraction=0.5",), [(100,)], 0.98),
    "a lower gamma": (("algorithm.gamma=0.8",), [(100,)], 0.8),
    "no discount": (("algorithm.gamma=1",), [(100,)], 0.96),
    "no fraction": (("algorithm.horizon_fraction=null",), [(100,)], 0.995),
    "rewards at the end alone": (("env=memory_chain",), [(100,)], 0.995),
    "a cost at each step": (("env=pendulum_no_velocity",), [(100,)], 0.96),
    "costs of some steps": (("env=t_maze",), [(100,)], 0.995),
}


@pytest.mark.parametrize(("overrides", "rollouts", "expected"), DISCOUNTS.values(), ids=DISCOUNTS)
def test_the_discount_follows_the_length_of_episodes_if_it_hardly_differs(overrides, rollouts, expected, small):
    config = small("env.num_envs=2", *overrides)
    algorithm, rows = with_rollout(config)
    gamma, reward, done = config.algorithm.gamma, rows["next", "reward"], rows["next", "done"]
    for lengths in ((), *rollouts):
        done.zero_()
        for row, length in enumerate(lengths):
            done[row, -1] = True
            rows["next", "step_count"][row, -1] = length
        metrics = algorithm.prepare(rows, reward.squeeze(-1))
    assert metrics["advantage/discount"] == pytest.approx(expected, rel=1e-6)
    # Uncorrelated rewards of deviation 1 have returns of deviation 1 / √(1 − γ²).
    scale = ((1 - expected**2) / (1 - gamma**2)) ** 0.5 if gamma < 1 else 1.0
    after = next_values(rows, algorithm.policy)
    advantage, target = gae(rows, scale * reward, after, expected, config.algorithm.lmbda)
    torch.testing.assert_close((rows["advantage"], rows["value_target"]), (advantage, target))
    resumed = make_algorithm(config, algorithm.policy)
    resumed.load_state_dict(algorithm.state_dict())
    done.zero_()
    assert resumed.prepare(rows, reward.squeeze(-1))["advantage/discount"] == metrics["advantage/discount"]


def test_a_step_that_the_environment_inserts_is_no_reward_of_zero(small):
    algorithm, rows = with_rollout(small("env.num_envs=2", "env=pendulum_no_velocity"))
    after = rows["next"]
    after["done"][:, -1], after["step_count"][:, -1], after["reward"][0, 0] = True, 100, 0.0
    rows[LOSS_MASK] = torch.ones_like(after["done"])
    rows[LOSS_MASK][0, 0] = False
    assert algorithm.prepare(rows, after["reward"].squeeze(-1))["advantage/discount"] == 0.96
    old = rows.clone()
    old["next", "step_count"][:, -1] = 40
    rows = torch.cat((rows, old))  # its episodes were counted with the rollout that they came from
    assert algorithm.prepare(rows, rows["next", "reward"].squeeze(-1))["advantage/discount"] == 0.96


WITH_A_BONUS = ("buffer=on_policy", "algorithm.entropy_coeff=0.5")
UNITS = [("none", [0.5, 50.0]), ("batch", [0.5, 0.5]), ("minibatch", [0.5, 0.5])]


@pytest.mark.parametrize(("normalize", "expected"), UNITS)
def test_the_entropys_weight_is_in_units_of_the_advantages(normalize, expected, small):
    reward = torch.randn(B, T, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    coefficients = []
    for size in (1.0, 100.0):
        algorithm, _, batch = make(small, *WITH_A_BONUS, f"algorithm.normalize_advantage={normalize}")
        rows = collected(batch, size)
        algorithm.prepare(rows, size * reward)
        unit = 1.0 if normalize != "none" else rows["advantage"].square().mean().sqrt().item() / size
        coefficients.append(algorithm.entropy_coeff.item() / unit)
    assert coefficients == pytest.approx(expected, rel=0.05 if normalize == "batch" else 1e-9)


def test_without_advantages_there_is_no_entropy_bonus(small):
    algorithm, _, batch = make(small, *WITH_A_BONUS)
    algorithm.prepare(collected(batch, 0.0), torch.zeros(B, T, dtype=torch.float64))
    assert algorithm.entropy_coeff == 0.0


KINDS = {"cartpole_no_velocity": 0.02, "pendulum_no_velocity": 0.04}


@pytest.mark.parametrize(("env", "expected"), KINDS.items(), ids=KINDS)
def test_without_a_coefficient_the_kind_of_action_decides(env, expected, small):
    algorithm, rows = with_rollout(small(f"env={env}"))
    algorithm.prepare(rows, rows["next", "reward"].squeeze(-1))
    assert algorithm.entropy_coeff.item() == pytest.approx(expected * float(algorithm.advantage_scale.value))


@pytest.mark.parametrize("env", KINDS)
def test_an_old_step_that_the_policy_has_followed_has_no_advantage(env, small):
    algorithm, policy, batch = make(small, f"env={env}", "env.num_envs=2")
    rows, reward = collected(batch, 1.0), torch.randn(B, T, dtype=torch.float64)
    rows["next"].update(batch.select(*policy.state_keys))
    rows["action_log_prob"] += torch.linspace(-1, 1, B * T, dtype=torch.float64).reshape(B, T)
    same = rows.clone()
    algorithm.prepare(rows, reward)
    ratio = reevaluate(same, policy)
    advantage, target = gae(same, reward.unsqueeze(-1), next_values(same, policy), 0.995, 0.9, ratio)
    followed = ((advantage > 0) & (ratio > 1.5)) | ((advantage < 0) & (ratio < 1 / 1.5))
    assert 0 < followed.sum() < ((ratio - 1).abs() > 0.5).sum()
    torch.testing.assert_close(rows["advantage"], advantage.masked_fill(followed, 0.0))
    torch.testing.assert_close(rows["value_target"], target)
    algorithm.options.normalize_advantage = "minibatch"
    unit = standardized(rows["advantage"]).masked_fill(followed, 0.0)
    assert loss_of(algorithm, rows).terms["objective"].item() == pytest.approx(-unit.mean().item())


def test_equal_advantages_are_standardized_to_zero():
    assert standardized(torch.ones(4, 4, 1)).abs().max() == 0


@pytest.mark.parametrize("masked", [-100.0, 0.0, 100.0, torch.inf, torch.nan])
def test_masked_steps_have_no_part_in_the_effective_sample_size(masked):
    log_ratio, mask = torch.tensor([0.0, 0.5, masked, -1.0]), torch.tensor([True, True, False, True])
    ratio = log_ratio[mask].exp()
    expected = ratio.sum() ** 2 / (3 * ratio.square().sum())
    torch.testing.assert_close(effective_sample_fraction(log_ratio, mask), expected)
    assert effective_sample_fraction(log_ratio, torch.zeros_like(mask)) == 0.0
