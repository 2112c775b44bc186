"""GRPO's loss against its formula, for every option."""

from collections import defaultdict
from itertools import product

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torch.distributions import Categorical, Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from recurrl.losses import GRPOLoss

B, T = 4, 6


def diagonal(loc, scale):
    return Independent(Normal(loc, scale), 1)


def squashed(loc, scale):
    return TransformedDistribution(diagonal(loc, scale), TanhTransform(cache_size=1))


def make_actor(kind):
    torch.manual_seed(0)
    if kind == "discrete":
        head, keys, distribution = nn.Linear(3, 5).double(), ["logits"], Categorical
    else:
        head = nn.Sequential(nn.Linear(3, 4).double(), SplitExp())
        keys, distribution = ["loc", "scale"], diagonal if kind == "continuous" else squashed
    return ProbabilisticTensorDictSequential(
        TensorDictModule(head, in_keys=["observation"], out_keys=keys),
        ProbabilisticTensorDictModule(keys, ["action"], distribution_class=distribution, return_log_prob=True),
    )


class SplitExp(nn.Module):
    def forward(self, features):
        loc, log_scale = features.chunk(2, -1)
        return loc, log_scale.exp()


def make_batch(actor, drift=0.3):
    """Actions and log-probabilities of another policy, so that ratios lie within and without every clip range."""
    torch.manual_seed(1)
    batch = TensorDict({"observation": torch.randn(B, T, 3, dtype=torch.float64)}, [B, T])
    with torch.no_grad():
        actor(batch)
        log_prob = actor.get_dist(batch).log_prob(batch["action"])
    batch["action_log_prob"] = log_prob + drift * torch.randn_like(log_prob)
    batch["ref_log_prob"] = log_prob + 0.5 * torch.randn_like(log_prob)
    batch["advantage"] = torch.randn(B, T, 1, dtype=torch.float64)
    batch["loss_mask"] = torch.rand(B, T, 1) < 0.7
    batch["episode_loss_steps"] = torch.randint(1, 9, (B, T, 1))
    return batch


OPTIONS = {
    "plain": {},
    "symmetric": {"clip_epsilon": 0.25},
    "clip higher": {"clip_epsilon": (0.125, 0.5)},
    "no entropy": {"entropy_bonus": False},
    "entropy": {"entropy_coeff": 0.25},
    "to reference": {"kl_to_ref_coeff": 0.25},
    "by episode": {"aggregation": "episode"},
    "all": {"clip_epsilon": (0.125, 0.5), "entropy_coeff": 0.25, "kl_to_ref_coeff": 0.5, "aggregation": "episode"},
}


def of_a_step(log_prob, old, ref, entropy, a, options):
    """Losses and diagnostics of one step, as the papers write them."""
    clip_epsilon = options.get("clip_epsilon", 0.2)
    low, high = clip_epsilon if isinstance(clip_epsilon, tuple) else (clip_epsilon, clip_epsilon)
    ratio, q = (log_prob - old).exp(), (ref - log_prob).exp()
    losses = {
        "loss_objective": -torch.min(ratio * a, ratio.clamp(1 - low, 1 + high) * a),
        "clip_fraction": ((ratio < 1 - low) | (ratio > 1 + high)).double(),
        "kl_approx": -ratio.log(),
        "kl": ratio - 1 - ratio.log(),
    }
    if options.get("entropy_bonus", True):
        losses |= {"loss_entropy": -options.get("entropy_coeff", 0.01) * entropy, "entropy": entropy}
    if coeff := options.get("kl_to_ref_coeff"):
        losses |= {"loss_kl_to_ref": coeff * (q - 1 - q.log()), "kl_to_ref": q - 1 - q.log()}
    return losses


def by_formula(log_prob, entropy, batch, options):
    """What the loss shall return, step by step."""
    losses = defaultdict(dict)
    diagnostics = defaultdict(list)
    weights, ratios = {}, []
    for place in product(range(B), range(T)):
        if not batch["loss_mask"][place].item():
            continue
        old = batch["action_log_prob"][place]
        log_ratio = log_prob[place] - old
        ratios.append(log_ratio.detach().exp())
        weights[place] = 1 / float(batch["episode_loss_steps"][place]) if "aggregation" in options else 1.0
        step = of_a_step(
            log_prob[place], old, batch["ref_log_prob"][place], entropy[place], batch["advantage"][place][0], options
        )
        for name, value in step.items():
            if name.startswith("loss_"):
                losses[name][place] = value
            else:
                diagnostics[name].append(value.detach())
    expected = {name: torch.stack(values).mean() for name, values in diagnostics.items()}
    expected["ESS"] = sum(ratios) ** 2 / sum(ratio**2 for ratio in ratios) / len(ratios)
    for name, values in losses.items():
        weighted = torch.stack([weights[place] * value for place, value in values.items()])
        expected[name] = weighted.sum() / sum(weights.values())
    return expected


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_loss_and_its_gradient_equal_the_formula(options, kind):
    actor = make_actor(kind)
    batch = make_batch(actor)
    output = GRPOLoss(actor, **options).double()(batch)
    gradient = torch.autograd.grad(total(output), list(actor.parameters()))
    distribution = actor.get_dist(batch.clone())
    expected = by_formula(distribution.log_prob(batch["action"]), distribution.entropy(), batch, options)
    assert set(output.keys()) == set(expected) == set(GRPOLoss(actor, **options).out_keys)
    for name, value in expected.items():
        torch.testing.assert_close(output[name], value, rtol=1e-7, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")
    wanted = torch.autograd.grad(total(expected), list(actor.parameters()))
    for ours, right in zip(gradient, wanted, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-7, atol=1e-9)


def total(output):
    return sum(output[name].sum() for name in sorted(output.keys()) if name.startswith("loss_"))


def test_an_entropy_without_a_closed_form_is_estimated_from_samples():
    actor = make_actor("squashed")
    batch = make_batch(actor)
    torch.manual_seed(2)
    entropy = GRPOLoss(actor, samples_mc_entropy=2000)(batch)["entropy"]
    # Of a squashed variable: that of the normal, and the mean of log |d tanh(u) / du|.
    normal = diagonal(*actor[0](batch.clone()).select("loc", "scale").values())
    u = normal.sample((2000,))
    jacobian = 2 * (torch.log(torch.tensor(2.0)) - u - nn.functional.softplus(-2 * u))
    expected = (normal.entropy() + jacobian.sum(-1).mean(0))[batch["loss_mask"].squeeze(-1)].mean()
    torch.testing.assert_close(entropy, expected, rtol=0.02, atol=0.02)


def test_keys_can_be_set():
    actor = make_actor("discrete")
    batch = make_batch(actor)
    expected = GRPOLoss(actor, kl_to_ref_coeff=1.0, aggregation="episode")(batch)
    names = ("advantage", "action", "action_log_prob", "ref_log_prob", "loss_mask", "episode_loss_steps")
    loss = GRPOLoss(actor, kl_to_ref_coeff=1.0, aggregation="episode", advantage_key="a")
    loss.set_keys(action="b", sample_log_prob="c", ref_log_probs="d", loss_mask="e", episode_loss_steps="f")
    renamed = batch.clone()
    for old, new in zip(names, "abcdef", strict=True):
        renamed.rename_key_(old, new)
    assert loss(renamed)["loss_objective"] == expected["loss_objective"]
    assert {"observation", "a", "b", "c"} <= set(loss.in_keys)


def test_it_can_be_called_with_tensors_instead_of_a_tensordict():
    actor = make_actor("discrete")
    batch = make_batch(actor).exclude("loss_mask")
    loss = GRPOLoss(actor, kl_to_ref_coeff=1.0, aggregation="episode")
    loss.select_out_keys("loss_objective", "ESS")
    objective, ess = loss(**{key: batch[key] for key in loss.in_keys})
    expected = GRPOLoss(actor, kl_to_ref_coeff=1.0, aggregation="episode")(batch)
    assert (objective, ess) == (expected["loss_objective"], expected["ESS"])


def test_a_minibatch_in_which_nothing_counts_has_no_loss_and_no_gradient():
    actor = make_actor("discrete")
    batch = make_batch(actor)
    batch["loss_mask"][:] = False
    output = GRPOLoss(actor, kl_to_ref_coeff=1.0, aggregation="episode")(batch)
    gradient = torch.autograd.grad(total(output), list(actor.parameters()))
    assert all(value.isfinite().all() for value in output.values())
    assert all(g.abs().max() == 0 for g in gradient)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_epsilon": 1.5}, "clip_epsilon must be at least 0 and below 1"),
        ({"clip_epsilon": (0.2, -0.1)}, "clip_epsilon must be at least 0"),
        ({"aggregation": "token"}, "aggregation must be one of step, episode"),
    ],
)
def test_options_out_of_range_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        GRPOLoss(make_actor("discrete"), **options)


def test_the_loss_does_not_change_its_input():
    actor = make_actor("discrete")
    batch = make_batch(actor)
    before = batch.clone()
    GRPOLoss(actor)(batch)
    assert set(batch.keys()) == set(before.keys())
    assert (batch == before).all()
