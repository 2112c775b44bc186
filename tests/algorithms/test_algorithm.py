"""What a custom algorithm may do: the same bits as a plain loop of autograd, or an error that says what to do."""

from copy import deepcopy

import pytest
import torch
from collected import collected, fresh_policy, rollouts, with_rollout
from rejections import error_of
from torch import nn

from recurrl import checkpoint
from recurrl.algorithms import Algorithm, Losses
from recurrl.algorithms.advantages import gae, next_values
from recurrl.algorithms.importance import mean_of
from recurrl.algorithms.ppo import PPO
from recurrl.build import make_algorithm
from recurrl.errors import ConfigError, RunError

OPTIONS = ("frames_per_batch=64", "total_frames=256", "slice_len=8", "epochs=3", "minibatch_slices=2", "lr=0.01")
ITERATIONS = 4


def made(small, algorithm=PPO, *overrides):
    """An algorithm with heads far from zero, and rollouts."""
    config = small(*OPTIONS, *overrides)
    policy = fresh_policy(config, std=0.5)
    batches = [batch.clone() for batch in rollouts(config, policy, ITERATIONS)]
    return algorithm(config.algorithm, policy, config), batches


def by_plain_autograd(algorithm, rollout, progress):
    """An update written out: no compiler, no fused steps skipped, no metrics."""
    config = algorithm.config
    algorithm.progress = progress
    algorithm.optimizer.param_groups[0]["lr"] = algorithm.annealed(config.lr, config.lr_final_fraction)
    algorithm.reward_scaler.update_statistics(rollout["next", "reward"].squeeze(-1), rollout["is_init"].squeeze(-1))
    rows = algorithm.buffer.extend(rollout, algorithm.gradient_signal.share)
    algorithm.states.set_rows(rows)
    algorithm.prepare(rows, algorithm.reward_scaler(rows["next", "reward"].squeeze(-1)))
    signal = algorithm.gradient_signal
    for epoch in range(config.epochs):
        for slices in algorithm.buffer.minibatches(rows):
            algorithm.optimizer.zero_grad()
            algorithm.loss(slices, algorithm.policy.sequence(*algorithm.policy.inputs(slices))).total.backward()
            nn.utils.clip_grad_norm_(algorithm.parameters(), algorithm.options.max_grad_norm)
            algorithm.optimizer.step()
            if epoch == 0:
                signal.add(algorithm.parameters())
        if epoch == 0:
            signal.end_epoch()
            epochs = algorithm.epochs()
        if epoch + 1 == epochs:
            break
    algorithm.states.drift(slices)  # runs the policy, which may count
    algorithm.policy.update_statistics(rollout["observation"])


class Counting(PPO):
    """Running statistics in the loss, of its own and of a batch norm."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.norm = nn.BatchNorm1d(self.config.cell.hidden_size)
        self.mean = nn.Buffer(torch.zeros(()))

    def loss(self, slices_SK, output):
        self.mean.lerp_(output.value.detach().mean(), 0.1)
        losses = super().loss(slices_SK, output)
        extra = self.norm(output.features.flatten(0, 1)).abs().mean() + (output.value - self.mean).square().mean()
        return losses._replace(terms={**losses.terms, "extra": extra})


@pytest.mark.parametrize("kind", [PPO, Counting])
def test_an_update_is_that_of_a_plain_loop_bit_for_bit(kind, small):
    algorithms = []
    for update in (Algorithm.update, by_plain_autograd):
        algorithm, batches = made(small, kind)
        torch.manual_seed(7)
        for number, rollout in enumerate(batches):
            update(algorithm, rollout, number / ITERATIONS)
            algorithm.policy.zero_grad()  # as a callback may
        algorithms.append(algorithm)
    torch.testing.assert_close(*(algorithm.state_dict() for algorithm in algorithms), rtol=0, atol=0)


def altered(base=PPO, **methods):
    """An algorithm with other methods."""
    return type("Altered", (base,), methods)


NOT_CALLED = [
    (altered(Algorithm, prepare=PPO.prepare), "Altered must define prepare and loss (got no loss)."),
    (altered(epochs=3), "Altered must have epochs(): 3 is not a callable object."),
    (altered(loss=lambda _: {}), "Altered must have loss(slices_SK, output): too many positional arguments."),
]


@pytest.mark.parametrize(("kind", "message"), NOT_CALLED)
def test_a_method_that_would_not_be_called_is_an_error_before_the_run(kind, message, small, monkeypatch):
    monkeypatch.setattr("recurrl.build.factory", lambda *_: kind)
    config = small(*OPTIONS)
    assert error_of(make_algorithm, config, fresh_policy(config)) == f"The algorithm {message}"


def test_parameters_that_are_frozen_or_a_loss_without_them_are_an_error(small):
    algorithm, batches = made(small)
    algorithm.update(batches[0], 0.0)
    algorithm.policy.requires_grad_(False)
    with pytest.raises(RunError, match="does not require a gradient, so nothing would be learned"):
        algorithm.update(batches[1], 0.25)


def changing(change):
    """PPO with a change of the losses of each minibatch."""
    return altered(loss=lambda self, slices_SK, output: change(PPO.loss(self, slices_SK, output), slices_SK))


def without_gradient(losses, _):
    return losses._replace(terms={name: term.detach() + 0 * term for name, term in losses.terms.items()})


def test_a_gradient_of_zero_is_an_error_unless_the_loss_is_zero(small):
    algorithm, batches = made(small, changing(without_gradient))
    with pytest.raises(RunError, match="has a gradient of exactly zero in all steps of an iteration"):
        algorithm.update(batches[0], 0.0)
    nothing = ("algorithm=grpo", "algorithm.group_size=2", "algorithm.drop_flat_groups=false")
    algorithm, batch = with_rollout(small(*OPTIONS, *nothing, "env.max_episode_steps=1"))
    metrics = algorithm.update(batch, 0.0)
    assert (metrics["optim/grad_norm"], metrics["loss/objective"]) == (0.0, 0.0)


def test_an_algorithms_own_parameters_and_buffers_are_saved_and_restored(small, tmp_path):
    algorithm, batches = made(small, Counting)
    before = deepcopy(algorithm.norm.state_dict())
    assert "loss/extra" in algorithm.update(batches[0], 0.0)
    assert all(not torch.equal(value, before[name]) for name, value in algorithm.norm.state_dict().items())
    path = checkpoint.save(tmp_path, 64, {}, algorithm.components())
    loaded, _ = made(small, Counting, "seed=1")
    checkpoint.Checkpoint(path).load(loaded.components(), {"seed": 0})
    states = ((each.state_dict(), each.optimizer.state_dict()) for each in (loaded, algorithm))
    torch.testing.assert_close(*states, rtol=0, atol=0)


def holding(name, make):
    """PPO that holds something more."""

    def init(self, *arguments):
        PPO.__init__(self, *arguments)
        setattr(self, name, make())

    return altered(__init__=init)


def text_metric(self, rows_NT, reward_NT):
    return {**PPO.prepare(self, rows_NT, reward_NT), "mine/phase": "warmup"}


class Late(PPO):
    """Makes a module after the optimizer, or lets a frozen one learn; with a gradient, and in vain."""

    def loss(self, slices_SK, output):
        if not hasattr(self, "late"):
            self.late = nn.Linear(output.features.shape[-1], 1)
        losses = super().loss(slices_SK, output)
        return losses._replace(terms={**losses.terms, "late": self.late(output.features).square().mean()})


def plus(metrics=(), **terms):
    """PPO with more terms and metrics."""
    more = {"terms": terms, "metrics": dict(metrics)}
    return changing(lambda losses, _: losses._replace(**{of: getattr(losses, of) | more[of] for of in more}))


def sometimes(losses, slices):
    return losses._replace(terms={**losses.terms, "rare": ZERO}) if (slices["index"] == 0).any() else losses


def of_every_pair(losses, _):
    return losses._replace(log_ratio=losses.log_ratio.unsqueeze(1) * losses.log_ratio.unsqueeze(-1))


ZERO = torch.zeros(())
NOT_LEARNT_OR_LOGGED = [
    (holding("head", lambda: nn.Linear(2, 1)), "head.weight, head.bias of algorithm=ppo get no gradient from the loss"),
    (holding("heads", lambda: [nn.Linear(2, 1)]), "heads of algorithm=ppo are not registered"),
    (holding("heads", lambda: {"own": nn.Linear(2, 1)}), "heads of algorithm=ppo are not registered"),
    (holding("weight", lambda: torch.zeros(2, requires_grad=True)), "weight of algorithm=ppo are not registered"),
    (Late, "late.weight, late.bias of algorithm=ppo are made or unfrozen after its constructor"),
    (altered(prepare=lambda *_: None), r"prepare of algorithm=ppo must return its metrics \(got None\)"),
    (altered(prepare=lambda _, *of: [of[0].set("own", of[1]), {}][-1]), r"must write own as \(4, 16, 1\) \(got"),
    (altered(prepare=lambda _, rows, reward: rows.set("index", reward)), r"must not write index \(got one\)"),
    (altered(prepare=text_metric), r"The metric mine/phase must be a number \(got 'warmup'\)"),
    (
        altered(loss=lambda *of: of[-1].value.mean()),
        r"must be recurrl.algorithms.Losses with at least one term \(got a Tensor",
    ),
    (changing(lambda losses, _: losses._replace(terms={})), r"with at least one term \(got a Losses\)"),
    (changing(of_every_pair), r"log_ratio of shape \(2, 8\) \(got \(2, 8, 8, 1\)\)"),
    (changing(sometimes), r"returns \['loss/rare'\] for some minibatches only"),
    (plus(aside=torch.ones(())), r"must return terms with a gradient \(got aside without\), or they would not"),
    (plus(foo=0.0), r"must return loss/foo of shape \(\) \(got float\). Return scalar tensors"),
    (plus({"policy/foo": torch.zeros(8)}), r"must return policy/foo of shape \(\) \(got \(8,\)\)"),
    (plus({"loss/critic": ZERO}), "The metric loss/critic is logged by two parts"),
    (plus({"optim/lr": ZERO}), "The metric optim/lr is logged by two parts"),
    (plus({"advantage/mean": ZERO}), "The metric advantage/mean is logged by two"),
]


@pytest.mark.parametrize(("kind", "message"), NOT_LEARNT_OR_LOGGED)
def test_what_would_not_be_learnt_or_logged_is_an_error_in_the_first_update(kind, message, small):
    algorithm, batches = made(small, kind)
    with pytest.raises(ConfigError, match=message):
        algorithm.update(batches[0], 0.0)


class OneTerm(Algorithm):
    """The least that an algorithm is."""

    def prepare(self, rows_NT, reward_NT):
        assert not torch.is_grad_enabled()
        return {}

    def loss(self, slices_SK, output):
        return Losses({"features": output.features.square().mean()})


@pytest.mark.parametrize("key", ["lr_schedule=adaptive", "algorithm.target_kl=0.1"])
def test_what_follows_the_kl_needs_it(key, small):
    algorithm, batches = made(small, OneTerm, key)
    assert "must have a log_ratio for lr_schedule=adaptive and " in error_of(algorithm.update, batches[0], 0.0)


def test_a_loss_that_learns_from_inserted_steps_is_an_error(small):
    algorithm, (rollout, *_) = made(small, OneTerm)
    rollout["next", "inserted"] = torch.zeros(*rollout.shape, 1, dtype=torch.bool)
    with pytest.raises(ConfigError, match=r"leave out steps that the environment inserts .* Losses\(..., mask=mask"):
        algorithm.update(rollout, 0.0)


def masked(self, slices_SK, output):
    """Leaves masked steps out, by a mask alone."""
    mask = slices_SK["loss_mask"]
    return Losses({"features": mean_of(output.features.square().mean(-1, keepdim=True), mask)}, mask=mask)


def test_a_mask_weights_minibatches_by_its_steps_and_without_any_no_step_is_taken(small):
    algorithm, (rollout, *_) = made(small, altered(OneTerm, loss=masked))
    rollout["next", "inserted"] = torch.ones(*rollout.shape, 1, dtype=torch.bool)
    rollout["next", "inserted"][0, 0] = False
    assert algorithm.update(rollout, 0.0)["optim/steps"] == algorithm.config.epochs


MISTAKES = [
    ("prepare", lambda _, rows, reward: gae(rows, reward, reward, 0.9, 0.9), ConfigError, "Declare critic_kind in the"),
    ("prepare", lambda a, rows, r: next_values(rows.set("state_value", r[..., None]), a.policy), ConfigError, "critic"),
    ("prepare", lambda _, rows_NT, __: {"value/mean": float(rows_NT["state_value"].mean())}, KeyError, "state_value"),
    ("loss", lambda *of: of[-1].value.square(), AttributeError, "'NoneType' object has no attribute 'square'"),
]


@pytest.mark.parametrize(("method", "does", "error", "message"), MISTAKES)
def test_mistakes_of_an_algorithm_without_a_critic_are_their_own_errors(method, does, error, message, small):
    config = small(*OPTIONS, "algorithm=grpo", "algorithm.group_size=2")
    policy, batch = collected(config)
    algorithm = altered(OneTerm, **{method: does})(config.algorithm, policy, config)
    assert message in error_of(algorithm.update, batch, 0.0, kind=error)
