"""GRPO's loss equals TorchRL's, except for what docs/torchrl.md lists; and a batch's terms follow from its steps."""

import pytest
import torch
from collected import with_rollout
from rejections import error_of
from tensordict import TensorDict
from torch import nn
from torch.distributions import Categorical, Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform
from torchrl.objectives.llm import GRPOLoss as TheirGRPOLoss
from torchrl.objectives.llm.grpo import GRPOLossOutput

from recurrl.losses import GRPOLoss
from recurrl.policy import PolicyModule

B, T = 4, 6
EQUAL = {"rtol": 1e-7, "atol": 1e-9}


class Actor(nn.Module):
    """A policy whose distribution says which steps count, as those of TorchRL's language models do."""

    in_keys = ("observation",)

    def __init__(self, kind="discrete"):
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.linear = kind, nn.Linear(3, 4).double()

    def get_dist(self, data, logits_key=None):
        outputs = self.linear(data["observation"])
        distribution = Categorical(logits=outputs) if self.kind == "discrete" else diagonal(outputs)
        if self.kind == "squashed":
            distribution = TransformedDistribution(distribution, TanhTransform(cache_size=1))
        distribution.mask = data.get("loss_mask", torch.ones(())).squeeze(-1)
        return distribution


def diagonal(outputs):
    loc, log_scale = outputs.chunk(2, -1)
    return Independent(Normal(loc, log_scale.exp()), 1)


def made(kind="discrete", counted=0.7):
    """A policy, and actions and log-probabilities of another, with ratios within and without every clip range."""
    actor = Actor(kind)
    torch.manual_seed(1)
    batch = TensorDict({"observation": torch.randn(B, T, 3, dtype=torch.float64)}, [B, T])
    batch["loss_mask"] = torch.rand(B, T, 1) < counted
    with torch.no_grad():
        distribution = actor.get_dist(batch)
        batch["action"] = distribution.sample()
        log_prob = distribution.log_prob(batch["action"])
    batch["action_log_prob"] = log_prob + 0.3 * torch.randn_like(log_prob)
    batch["ref_log_prob"] = log_prob + 0.5 * torch.randn_like(log_prob)
    batch["advantage"] = torch.randn(B, T, 1, dtype=torch.float64)
    batch["episode_loss_steps"] = torch.randint(1, 9, (B, T, 1))
    return actor, batch


def total(output):
    return sum(output.get(name).sum() for name in sorted(output.keys()) if name.startswith("loss_"))


ALL = {"clip_epsilon": (0.125, 0.5), "entropy_coeff": 0.25, "kl_to_ref_coeff": 0.5}


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@pytest.mark.parametrize("options", [{}, ALL, {**ALL, "aggregation": "episode"}], ids=["defaults", "all", "by episode"])
def test_the_terms_of_steps_alone_give_those_of_a_batch(options, kind):
    """By episode, a step's weight is one over the number of its episode's steps. The batch stays as it is."""
    actor, batch = made(kind)
    before, loss = batch.clone(), GRPOLoss(actor, **options).double()
    output = loss(batch)
    assert (batch == before).all()
    assert set(output.keys()) == set(loss.out_keys)
    places = batch["loss_mask"].squeeze(-1).nonzero().tolist()
    steps = [loss(batch[row : row + 1, step : step + 1]) for row, step in places]
    of_episodes = torch.stack([1 / batch["episode_loss_steps"][row, step, 0] for row, step in places]).double()
    expected = {}
    for name in loss.out_keys:
        values = torch.stack([step[name] for step in steps])
        weights = of_episodes if "aggregation" in options and name.startswith("loss_") else torch.ones_like(values)
        expected[name] = (weights * values).sum() / weights.sum()
    ratios = torch.stack([-step["kl_approx"] for step in steps]).exp()
    expected["ESS"] = ratios.sum() ** 2 / ratios.square().sum() / len(ratios)
    expected["kl"] = (ratios - 1 - ratios.log()).mean()
    torch.testing.assert_close({name: output[name] for name in expected}, expected, **EQUAL)
    gradients = [torch.autograd.grad(total(each), list(actor.parameters())) for each in (output, expected)]
    torch.testing.assert_close(*gradients, **EQUAL)


OPTIONS = (
    *("algorithm.clip_epsilon=0.125", "algorithm.clip_epsilon_high=0.5", "algorithm.entropy_coeff=0.25"),
    *("algorithm.kl_to_ref_coeff=0.5", "algorithm.group_size=2", "env.max_episode_steps=8"),
)


@pytest.mark.parametrize("aggregation", ["step", "episode"])
@pytest.mark.parametrize("env", ["cartpole_no_velocity", "pendulum_no_velocity"])
def test_the_loss_of_the_algorithm_is_that_of_the_module_with_its_options(env, aggregation, small):
    chosen = (f"env={env}", "algorithm=grpo", f"algorithm.aggregation={aggregation}")
    algorithm, rows = with_rollout(small(*chosen, *OPTIONS))
    algorithm.prepare(rows, torch.randn(rows.shape))
    for name in ("action_log_prob", "ref_log_prob"):
        rows[name] += 0.3 * torch.randn_like(rows[name])  # as of other policies
    rows["loss_mask"] &= torch.rand(*rows.shape, 1) < 0.7
    rows["episode_loss_steps"] = torch.randint(1, 9, (*rows.shape, 1))
    losses = algorithm.loss(rows, algorithm.policy.sequence(*algorithm.policy.inputs(rows)))
    expected = GRPOLoss(PolicyModule(algorithm.policy), **ALL, aggregation=aggregation)(rows)
    torch.testing.assert_close(losses.terms, {name: expected[f"loss_{name}"] for name in losses.terms})
    assert losses.terms.keys() == {"objective", "entropy", "kl_to_ref"}
    assert all(term != 0 for term in losses.terms.values())


def both_losses(counted=1.1, **options):
    """TorchRL's output and ours, and the gradients of both."""
    actor, batch = made(counted=counted)
    outputs, gradients = [], []
    for make in (TheirGRPOLoss, GRPOLoss):
        loss = make(actor, **options).double()
        loss.set_keys(action="action", sample_log_prob="action_log_prob", ref_log_probs="ref_log_prob")
        output = loss(batch.clone())
        outputs.append(output)
        gradients.append(list(torch.autograd.grad(total(output), list(actor.parameters()))))
    return *outputs, *gradients


FIELDS = [name for name in GRPOLossOutput.__dataclass_fields__ if not name.startswith("_")]
LOSSES = {
    "defaults": {},
    "no entropy": {"entropy_bonus": False},
    "threshold of zero": {"kl_mask_threshold": 0.0},
    "aggregation null": {"aggregation": None},
    "reduction mean": {"reduction": "mean"},
    "all": ALL,
    "without effect": {"clip_value": 0.2, "functional": False, "gamma": 0.9},
}


@pytest.mark.parametrize("options", LOSSES.values(), ids=LOSSES)
def test_losses_equal_torchrls(options):
    theirs, ours, expected, gradients = both_losses(**options)
    fields = {name: getattr(theirs, name) for name in FIELDS if getattr(theirs, name) is not None}
    assert {name for name in FIELDS if getattr(ours, name) is not None} == fields.keys()
    for name, value in fields.items():
        torch.testing.assert_close(getattr(ours, name), value.reshape(getattr(ours, name).shape), **EQUAL)
    torch.testing.assert_close(gradients, expected, **EQUAL)


def test_losses_over_masked_steps_equal_torchrls():
    theirs, ours, expected, gradients = both_losses(0.6)
    for name in ("loss_objective", "loss_entropy", "ESS"):
        b = getattr(ours, name)
        torch.testing.assert_close(b, getattr(theirs, name).reshape(b.shape), **EQUAL)
    torch.testing.assert_close(gradients, expected, **EQUAL)


def test_statistics_are_means_over_the_steps_that_count():
    theirs, ours, *_ = both_losses(0.6, kl_to_ref_coeff=0.2)
    counted = made(counted=0.6)[1]["loss_mask"].double().mean()
    assert 0 < counted < 1
    for name in ("clip_fraction", "kl_approx", "kl_to_ref", "loss_kl_to_ref"):
        torch.testing.assert_close(getattr(ours, name) * counted, getattr(theirs, name), **EQUAL)
    assert ours.entropy != theirs.entropy


FOR_LANGUAGE_MODELS = [
    *(("aggregation", "prompt_mean"), ("aggregation", "none"), ("reduction", "sum"), ("reduction", "none")),
    *(("kl_mask_threshold", 0.1), ("kl_to_inference_coeff", 0.1)),
]


@pytest.mark.parametrize(("option", "value"), FOR_LANGUAGE_MODELS)
def test_options_for_language_models_are_an_error(option, value):
    TheirGRPOLoss(Actor(), **{option: value})
    assert f"{option} must be" in error_of(GRPOLoss, Actor(), **{option: value}, kind=ValueError)


@pytest.mark.parametrize("value", [1.5, (0.2, -0.1)], ids=str)
def test_a_clip_range_beyond_0_to_1_is_an_error(value):
    message = "clip_epsilon must be at least 0 and below 1"
    assert message in error_of(GRPOLoss, Actor(), clip_epsilon=value, kind=ValueError)


def test_a_kl_without_weight_is_left_out():
    loss = GRPOLoss(Actor(), kl_to_ref_coeff=0.0, kl_to_inference_coeff=0.0)
    assert not any("kl_to" in str(key) for key in loss.out_keys)
    assert "ref_log_prob" not in loss.in_keys
    assert "ref_log_prob" in GRPOLoss(Actor(), kl_to_ref_coeff=0.1).in_keys


@pytest.mark.parametrize("entry", ["action", "action_log_prob", "ref_log_prob", "advantage"])
def test_a_missing_entry_is_a_key_error(entry):
    actor, batch = made()
    loss = GRPOLoss(actor, kl_to_ref_coeff=0.1)
    assert f'key "{entry}" not found' in error_of(loss, batch.exclude(entry), kind=KeyError)


def test_the_output_is_torchrls_class():
    theirs, ours, *_ = both_losses()
    assert isinstance(ours, GRPOLossOutput)
    assert isinstance(ours, GRPOLoss(Actor()).output_type)
    assert ours["loss_objective"] == ours.loss_objective == ours.get("loss_objective")
    assert set(ours.keys()) == {*theirs.keys(), "kl"}


@pytest.mark.parametrize("make", [TheirGRPOLoss, GRPOLoss])
def test_the_device_is_that_of_the_coefficients_and_neither_loss_has_a_critic(make):
    loss = make(Actor(), device="meta")
    assert {value.device.type for value in loss.buffers()} == {"meta"}
    assert {value.device.type for value in loss.parameters()} == {"cpu"}
    assert not hasattr(loss, "loss_critic")
    with pytest.raises(NotImplementedError):
        loss.make_value_estimator()


def test_an_entropy_without_a_closed_form_is_estimated_from_samples():
    actor, batch = made("squashed")
    torch.manual_seed(2)
    entropy = GRPOLoss(actor, samples_mc_entropy=2000)(batch)["entropy"]
    # Of a squashed variable: that of the normal, and the mean of log |d tanh(u) / du|.
    normal = diagonal(actor.linear(batch["observation"]))
    u = normal.sample((2000,))
    jacobian = 2 * (torch.log(torch.tensor(2.0)) - u - nn.functional.softplus(-2 * u))
    expected = (normal.entropy() + jacobian.sum(-1).mean(0))[batch["loss_mask"].squeeze(-1)].mean()
    torch.testing.assert_close(entropy, expected, rtol=0.02, atol=0.02)


def test_keys_can_be_set():
    actor, batch = made()
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
    actor, batch = made()
    loss = GRPOLoss(actor, kl_to_ref_coeff=1.0, aggregation="episode")
    expected = loss(batch.exclude("loss_mask"))
    loss.select_out_keys("loss_objective", "ESS")
    objective, ess = loss(**{key: batch[key] for key in loss.in_keys})
    assert (objective, ess) == (expected["loss_objective"], expected["ESS"])


def test_a_minibatch_in_which_nothing_counts_has_no_loss_and_no_gradient():
    actor, batch = made()
    batch["loss_mask"][:] = False
    output = GRPOLoss(actor, kl_to_ref_coeff=1.0, aggregation="episode")(batch)
    assert all(value.isfinite().all() for value in output.values())
    assert not any(each.any() for each in torch.autograd.grad(total(output), list(actor.parameters())))
