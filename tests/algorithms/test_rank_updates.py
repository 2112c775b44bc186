"""Ranks learn together what one process learns from all rows."""

from dataclasses import replace

import pytest
import torch
from collected import fresh_policy, rollouts, weights_of, with_rollout
from in_ranks import in_ranks, met
from torch import nn

from recurrl.build import config_of_rank, make_algorithm
from recurrl.config.cell import MLPConfig
from recurrl.runtime.ranks import world


class Routed(nn.Module):
    """A mixture of experts, each for a range of the first entry: a minibatch may have nothing for some of them."""

    def __init__(self, options: MLPConfig, spec):
        super().__init__()
        self.bounds = nn.Buffer(torch.tensor([-0.05, 0.0, 0.05]))
        self.experts = nn.ModuleList(nn.Linear(spec.shape[-1], 8) for _ in range(4))

    def forward(self, x_BX):
        features_BF, chosen_B = x_BX.new_zeros(len(x_BX), 8), torch.bucketize(x_BX[:, 0], self.bounds)
        for number in chosen_B.unique().tolist():
            features_BF[chosen_B == number] = self.experts[number](x_BX[chosen_B == number])
        return features_BF


ALGORITHMS = {
    "ppo": (),
    "ppo, advantages by minibatch": ("algorithm.normalize_advantage=minibatch",),
    "ppo, advantages by batch": ("algorithm.normalize_advantage=batch",),
    "ppo, the learning rate follows the KL": ("lr_schedule=adaptive", "desired_kl=1e-4"),
    "ppo, epochs end at a KL": ("algorithm.target_kl=1e-4", "lr=0.05", "lr_schedule=linear"),
    "ppo, v-trace, refreshed states": ("collector=multi_async", "collector.num_workers=2", "state=refresh"),
    "ppo, parameters that minibatches do not all use": (f"encoder={__name__}:Routed",),
    "grpo": ("algorithm=grpo", "algorithm.group_size=2"),
    "grpo, masked": ("algorithm=grpo", "algorithm.group_size=2", "algorithm.drop_flat_groups=true"),
    "grpo, by episode": ("algorithm=grpo", "algorithm.group_size=2", "algorithm.aggregation=episode"),
}


def algorithm_of(config):
    return make_algorithm(config, fresh_policy(config))


def learned(algorithm, batches, order):
    """What becomes of an algorithm after two iterations, and its gradients as clipped."""
    algorithm.buffer.order = lambda _: order
    gradients, parameters = [], list(algorithm.policy.parameters())
    algorithm.optimizer.register_step_pre_hook(
        lambda *_: gradients.append(torch.cat([each.grad.flatten() for each in parameters]))
    )
    metrics = [algorithm.update(batch.clone(), progress=0.1 * number) for number, batch in enumerate(batches)]
    scaler = algorithm.reward_scaler.state_dict()
    del scaler["discounted_return"]
    states = {"policy": algorithm.policy.state_dict(), "scaler": scaler}
    return {"metrics": metrics, "gradients": gradients, "lr": algorithm.optimizer.param_groups[0]["lr"], **states}


@pytest.mark.parametrize("overrides", ALGORITHMS.values(), ids=ALGORITHMS.keys())
def test_two_ranks_learn_from_halves_what_one_process_learns_from_all(small, overrides):
    sizes = ("env.num_envs=8", "frames_per_batch=128", "slice_len=4", "minibatch_slices=8")
    config = small("buffer=on_policy", *sizes, *overrides)
    policy, batches = fresh_policy(config), []
    # Workers take seconds to start, and collect the same.
    in_this_process = replace(config, collector=small("collector=single").collector)
    for seed in range(2):
        torch.manual_seed(seed)
        batches += [batch.clone() for batch in rollouts(in_this_process, policy)]
    slices, per_rank = 32, 16
    # The minibatches of all: those of rank 0, half of each, and those of rank 1.
    halves = torch.arange(slices).view(2, -1, config.minibatch_slices // 2)
    alone = learned(algorithm_of(config), batches, halves.transpose(0, 1).reshape(-1))

    def of_a_rank():
        share = config_of_rank(config, world())
        rows = slice(share.env.num_envs * world().rank, share.env.num_envs * (world().rank + 1))
        return learned(algorithm_of(share), [batch[rows] for batch in batches], torch.arange(per_rank))

    of_ranks = in_ranks(2, met(of_a_rank))
    torch.testing.assert_close(of_ranks[0]["policy"], of_ranks[1]["policy"], rtol=0, atol=0)
    for together in of_ranks:
        torch.testing.assert_close(together["gradients"][0], alone["gradients"][0], rtol=0, atol=1e-6)
        torch.testing.assert_close(together["gradients"], alone["gradients"], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(together["policy"], alone["policy"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(together["scaler"], alone["scaler"])
        assert together["lr"] == pytest.approx(alone["lr"])
        for here, there in zip(together["metrics"], alone["metrics"], strict=True):
            for name, value in here.items():
                # This is not a mean over steps: the mean of the ranks' own is logged.
                is_mean = name != "policy/effective_sample_fraction"
                assert value == pytest.approx(there[name], rel=1e-3 if is_mean else 0.2, abs=1e-5), name


@pytest.mark.parametrize(("lengths", "expected"), [((100, 100), 0.96), ((100, 0), 0.96), ((100, 50), 0.995)])
def test_ranks_agree_on_the_discount(small, lengths, expected):
    config = small("env.num_envs=2")

    def of_a_rank():
        algorithm, rows = with_rollout(config_of_rank(config, world()))
        length = lengths[world().rank]
        rows["next", "done"] = torch.full_like(rows["next", "done"], length > 0)
        rows["next", "step_count"].fill_(length)
        rows["next", "done"][:, 0] = False
        rows["next", "reward"].fill_(float(world().rank == 0))
        return algorithm.prepare(rows, rows["next", "reward"].squeeze(-1))["advantage/discount"]

    assert in_ranks(2, met(of_a_rank)) == pytest.approx([expected] * 2)


@pytest.mark.parametrize("where", ["gradient", "loss"])
def test_a_step_that_is_not_finite_on_one_rank_is_skipped_by_all(small, where):
    config = small("algorithm.normalize_advantage=none")

    def of_a_rank():
        algorithm, batch = with_rollout(config_of_rank(config, world()))
        before = weights_of(algorithm.policy)
        backward = algorithm.backward

        def broken(minibatch):
            losses, total = backward(minibatch)
            if world().rank == 1 and where == "gradient":
                next(algorithm.policy.parameters()).grad[0] = torch.nan
            return losses, total * (torch.inf if world().rank == 1 and where == "loss" else 1.0)

        algorithm.backward = broken
        return algorithm.update(batch, 0.0)["optim/skipped_steps"], before, weights_of(algorithm.policy)

    for skipped, before, after in in_ranks(2, met(of_a_rank)):
        assert skipped == config.epochs * 2
        assert torch.equal(before, after)


@pytest.mark.parametrize("masked", [(), (0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_ranks_take_a_step_if_any_step_counts_on_any_of_them(small, masked, optimizer):
    config = small("algorithm=grpo", "algorithm.group_size=2", f"optimizer={optimizer}")

    def of_a_rank():
        algorithm, batch = with_rollout(config_of_rank(config, world()))
        algorithm.update(batch, 0.0)  # the optimizer then has momentum
        before = weights_of(algorithm.policy)
        (slices, *_) = algorithm.buffer.minibatches(algorithm.rows)
        slices["advantage"] = torch.randn_like(slices["advantage"])
        slices["loss_mask"].fill_(world().rank not in masked)
        algorithm.states.set_initial_states(slices)
        return float(algorithm.gradient_step(slices)["optim/steps"]), before, weights_of(algorithm.policy)

    (taken, before, after), (others, _, of_other) = in_ranks(2, met(of_a_rank))
    assert taken == others == (len(masked) < 2)
    assert torch.equal(after, of_other)
    assert torch.equal(before, after) == (len(masked) == 2)
