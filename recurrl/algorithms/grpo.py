"""Group-relative policy optimisation for control, without a critic: the group's mean return is the baseline.

Shao et al. 2024, https://arxiv.org/abs/2402.03300. The wider clip range above 1 is from DAPO, Yu et al. 2025,
https://arxiv.org/abs/2503.14476.

Shape legend: N environments, T steps of a row, G groups, M members of a group, J episodes of a row, S slices, K steps
of a slice, B rows or slices.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn import functional

from recurrl.algorithms.advantages import advantage_metrics, discounted_sum
from recurrl.algorithms.algorithm import Algorithm
from recurrl.algorithms.importance import clipped_surrogate, kl_from_log_ratio, log_range, mean_of
from recurrl.algorithms.metrics import Losses
from recurrl.config import GRPOConfig, TrainConfig
from recurrl.errors import require
from recurrl.keys import ACTION, ADVANTAGE, IS_INIT, LOG_PROB, LOSS_MASK
from recurrl.policy.policy import Policy, SequenceOutput
from recurrl.runtime.ranks import world
from recurrl.runtime.statistics import summary
from recurrl.specs import is_continuous

REF_LOG_PROB = "ref_log_prob"
EPISODE_LOSS_STEPS = "episode_loss_steps"
"""Entry of rows: the number of unmasked steps in the episode of each step."""


class GRPO(Algorithm):
    """GRPO: advantages relative to a group of episodes, and optionally a KL penalty towards a reference policy."""

    options: GRPOConfig
    log_clip_range: tuple[float, float]

    def __init__(self, options: GRPOConfig, policy: Policy, config: TrainConfig) -> None:
        super().__init__(options, policy, config)
        self.log_clip_range = log_range(options.clip_epsilon, options.clip_epsilon_high)
        # A tensor, because a compiled loss treats Python numbers as constants; prepare sets it.
        at_first = options.entropy_coeff or 0.0
        self.entropy_coeff = nn.Buffer(next(policy.parameters()).new_tensor(at_first), persistent=False)
        self.reference = deepcopy(policy).requires_grad_(False) if options.kl_to_ref_coeff else None
        self.iterations = nn.Buffer(torch.zeros((), dtype=torch.int64))

    def prepare(self, rows_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Writes advantages, the loss mask and the reference policy's log-probabilities; anneals the entropy bonus.

        Every ``ref_refresh_iterations`` iterations the policy is copied to the reference first.
        """
        options = self.options
        require(
            self.reference is not None or not options.kl_to_ref_coeff,
            f"algorithm.kl_to_ref_coeff must stay 0 in a run that began with 0 (got {options.kl_to_ref_coeff}): it "
            "has no reference policy. Start a new run with a value above 0.",
        )
        # Again, because a callback may change these options.
        self.log_clip_range = log_range(options.clip_epsilon, options.clip_epsilon_high)
        bonus = options.bonus(continuous=is_continuous(rows_NT[ACTION]))
        self.entropy_coeff.fill_(self.annealed(bonus, options.entropy_final_fraction))
        metrics = add_group_advantages(rows_NT, reward_NT, options)
        if self.reference is not None:
            every = options.ref_refresh_iterations
            if every is not None and int(self.iterations) % every == 0:
                self.reference.load_state_dict(self.policy.state_dict())
            # Rows begin with a reset, so the reference starts from zero states, not from the policy's.
            output = self.reference.sequence(*self.reference.inputs(rows_NT))
            rows_NT.set(REF_LOG_PROB, output.distribution.log_prob(rows_NT[ACTION]).unsqueeze(-1))
        self.iterations.add_(1)
        return {**metrics, **advantage_metrics(rows_NT[ADVANTAGE][rows_NT[LOSS_MASK]])}

    def loss(self, slices_SK: TensorDictBase, output: SequenceOutput) -> Losses:
        """GRPO's loss of a minibatch."""
        return grpo_loss(
            output.distribution,
            slices_SK,
            self.log_clip_range,
            self.entropy_coeff,
            self.options.aggregation,
            self.options.kl_to_ref_coeff,
        )


def add_group_advantages(rows_NT: TensorDictBase, reward_NT: Tensor, options: GRPOConfig) -> dict[str, float]:
    """Writes advantages relative to a group, and the loss mask, into rows ``[N, T]`` that all begin with a reset.

    Shao et al. 2024, https://arxiv.org/abs/2402.03300, applied to control. The j-th episodes of a group's members start
    from the same state and are compared over a common horizon (see :func:`_comparable_steps`). With ``outcome``, the
    advantage of every step of an episode is the episode's return minus the group's mean return. With ``process``, the
    advantage of the k-th step is the return from that step on, minus its mean over the members whose episode reaches
    step k. An episode that is compared with no other has advantage zero.

    Args:
        rows_NT: a rollout; environments i·M to (i + 1)·M − 1 are group i.
        reward_NT: the scaled rewards.
        options: ``group_size`` M, ``gamma``, ``advantage`` (``outcome`` or ``process``); ``divide_by_std`` also divides
            by the group's standard deviation (n − 1); ``drop_flat_groups`` masks the episodes of groups whose
            advantages are all zero (dynamic sampling, Yu et al. 2025, https://arxiv.org/abs/2503.14476).

    Returns:
        Metrics of the groups.
    """
    is_init_NT = rows_NT[IS_INIT].squeeze(-1)
    start_NT, episode_id_NT, compared_NT = _comparable_steps(is_init_NT, options.group_size)
    if LOSS_MASK in rows_NT:  # steps that the environment inserted
        compared_NT &= rows_NT[LOSS_MASK].squeeze(-1)
    # The discounted sum of rewards from each step to the end of its episode or row, in float64.
    counted_NT1 = torch.where(compared_NT, reward_NT, 0.0).double().unsqueeze(-1)
    continues_NT1 = functional.pad(~is_init_NT[:, 1:], (0, 1)).double().unsqueeze(-1)
    to_go_NT = discounted_sum(counted_NT1, options.gamma * continues_NT1).squeeze(-1)
    sampled_NT, peers_NT = compared_NT & is_init_NT, episode_id_NT
    returns = summary(to_go_NT[sampled_NT])
    if options.advantage == "process":
        steps = is_init_NT.shape[1]
        offset_NT = torch.arange(steps, device=start_NT.device) - start_NT
        sampled_NT, peers_NT = compared_NT, episode_id_NT * steps + offset_NT
    advantage_NT = torch.zeros_like(to_go_NT)
    advantage_NT[sampled_NT] = _relative(to_go_NT[sampled_NT], peers_NT[sampled_NT], options.divide_by_std)
    if options.advantage == "outcome":
        advantage_NT = advantage_NT.gather(1, start_NT)
    numbers, inverse = episode_id_NT[compared_NT].unique(return_inverse=True)
    spread = advantage_NT.new_zeros(len(numbers)).index_add(0, inverse, advantage_NT[compared_NT].abs())
    flat, mask_NT = spread == 0, compared_NT.clone()
    if options.drop_flat_groups:
        mask_NT[compared_NT] = ~flat[inverse]
    counts_NT = torch.zeros_like(start_NT).scatter_add_(1, start_NT, mask_NT.long())
    rows_NT.set(ADVANTAGE, torch.where(mask_NT, advantage_NT, 0.0).to(reward_NT.dtype).unsqueeze(-1))
    rows_NT.set(LOSS_MASK, mask_NT.unsqueeze(-1))
    rows_NT.set(EPISODE_LOSS_STEPS, counts_NT.gather(1, start_NT).unsqueeze(-1))
    # Multiplied by the number of ranks: these are totals, but metrics are averaged over ranks.
    groups, without_spread = len(numbers) * world().size, int(flat.sum()) * world().size
    return {
        "group/groups": float(groups),
        "group/without_spread": float(without_spread),
        "group/dropped": float(without_spread if options.drop_flat_groups else 0),
        "group/counted_fraction": float(mask_NT.double().mean()),
        "group/return_mean": returns.mean,
        "group/return_std": returns.std,
    }


def _comparable_steps(is_init_NT: Tensor, group_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Selects the steps that are compared: the j-th episodes of a group share a horizon, the steps that the latest one
    has left in its row.

    Episodes that start late have fewer steps left in their row, which must not lower their advantage; and dropping the
    episodes that the row's end cuts off would drop the long ones. So all compared episodes are cut to one horizon, and
    the latest members are left out so as to maximise members × horizon. Both depend only on when episodes begin, not on
    what happens in them, so the comparison is unbiased.

    Returns:
        Three tensors ``[N, T]``: the step of the row at which each step's episode began; a number that is equal for
        exactly those episodes that start from the same state; and a mask of the steps that are compared.
    """
    rows, steps = is_init_NT.shape
    step_T = torch.arange(steps, device=is_init_NT.device)
    episode_NT = is_init_NT.long().cumsum(1) - 1
    start_NT = torch.where(is_init_NT, step_T, 0).cummax(1).values
    episodes = int(episode_NT.max()) + 1
    # A member that does not reach the j-th episode has no steps left for it.
    start_NJ = start_NT.new_full((rows, episodes), steps).scatter_(1, episode_NT, start_NT)
    ordered_GMJ = start_NJ.view(-1, group_size, episodes).sort(1).values
    members_M = torch.arange(1, group_size + 1, device=step_T.device)
    frames_GMJ = members_M.view(-1, 1) * (steps - ordered_GMJ)
    frames_GMJ[:, 0] = 0  # a single member cannot be compared
    frames_GJ, last_GJ = frames_GMJ.max(1)
    horizon_GJ = frames_GJ // (last_GJ + 1)
    episode_id_NT = (torch.arange(rows, device=step_T.device) // group_size * episodes).view(-1, 1) + episode_NT
    horizon_NT = horizon_GJ.flatten()[episode_id_NT]
    return start_NT, episode_id_NT, (start_NT + horizon_NT <= steps) & (step_T - start_NT < horizon_NT)


def _relative(values: Tensor, peers: Tensor, divide_by_std: bool) -> Tensor:
    """Each value minus the mean of the values with the same number in ``peers``; zero if they are all equal."""
    numbers, inverse = peers.unique(return_inverse=True)
    zeros = values.new_zeros(len(numbers))
    count = zeros.index_add(0, inverse, torch.ones_like(values))
    centred = values - (zeros.index_add(0, inverse, values) / count)[inverse]
    # Equal returns may differ by rounding.
    largest = zeros.scatter_reduce(0, inverse, values.abs(), "amax")
    spread = zeros.scatter_reduce(0, inverse, centred.abs(), "amax")
    if divide_by_std:
        variance = zeros.index_add(0, inverse, centred**2) / (count - 1).clamp(min=1)
        centred = centred / variance.sqrt().clamp(min=torch.finfo(values.dtype).tiny)[inverse]
    return torch.where((spread <= 1e-6 * largest)[inverse], 0.0, centred)


def grpo_loss(
    distribution: Distribution,
    data: Mapping[str, Any] | TensorDictBase,
    log_clip_range: tuple[float, float],
    entropy_coeff: Tensor | float | None,
    aggregation: str,
    kl_to_ref_coeff: float,
    samples_mc_entropy: int = 1,
) -> Losses:
    """The clipped surrogate without a critic, over unmasked steps, with a penalty on the KL from a reference.

    For a step with advantage A, ratio ρ = π(a) / π_old(a), and q = π_ref(a) / π(a)::

        objective  = −min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A)
        entropy    = −entropy_coeff · H(π)
        kl_to_ref  = kl_to_ref_coeff · (q − 1 − log q)

    each averaged over steps. With ``kl_to_ref_coeff`` 0 the KL is left out. Metrics are means over unmasked steps.

    Args:
        distribution: the distribution of the actions ``[B, T]``.
        data: the rollout's entries, with ``advantage`` ``[B, T, 1]`` and ``loss_mask`` (bool of that shape; without it,
            every step counts). Some options need ``ref_log_prob`` (of either shape) or ``episode_loss_steps``
            ``[B, T, 1]``, the number of unmasked steps in the step's episode.
        log_clip_range: the clip range of log ρ, see :func:`~recurrl.algorithms.importance.log_range`.
        entropy_coeff: weight of the entropy; None leaves it out.
        aggregation: ``step`` weights all steps equally; ``episode`` weights all episodes equally, and the steps within
            each. Its weights come from ``episode_loss_steps``, so an episode may be spread over several minibatches.
        kl_to_ref_coeff: weight of the KL from the reference policy, whose log-probabilities are ``ref_log_prob``.
        samples_mc_entropy: samples for estimating an entropy without a closed form.

    Raises:
        KeyError: an entry is missing.
        ValueError: the policy returns more than one log-probability per step.
    """
    advantage, old = data[ADVANTAGE], data[LOG_PROB].unsqueeze(-1)
    log_ratio = distribution.log_prob(data[ACTION]).unsqueeze(-1) - old
    mask = data[LOSS_MASK] if LOSS_MASK in data else torch.ones_like(advantage, dtype=torch.bool)
    weight = mask.to(log_ratio.dtype)
    if aggregation == "episode":
        weight = weight / data[EPISODE_LOSS_STEPS].clamp(min=1)
    terms = {"objective": mean_of(-clipped_surrogate(log_ratio, advantage, log_clip_range), weight)}
    metrics = {}
    if entropy_coeff is not None:
        metrics["entropy"] = entropy = _entropy(distribution, samples_mc_entropy).unsqueeze(-1)
        terms["entropy"] = mean_of(-entropy_coeff * entropy, weight)
    if kl_to_ref_coeff:
        metrics["kl_to_ref"] = kl = kl_from_log_ratio(data[REF_LOG_PROB].view_as(old) - (old + log_ratio))
        terms["kl_to_ref"] = mean_of(kl_to_ref_coeff * kl, weight)
    means = {f"policy/{name}": mean_of(value.detach(), mask) for name, value in metrics.items()}
    return Losses(terms, means, log_ratio.detach(), mask, weight.sum())


def _entropy(distribution: Distribution, samples: int) -> Tensor:
    """The entropy, estimated from ``samples`` samples if it has no closed form."""
    try:
        return distribution.entropy()
    except NotImplementedError:
        shape = torch.Size([samples])
        drawn = distribution.rsample(shape) if distribution.has_rsample else distribution.sample(shape)
        return -distribution.log_prob(drawn).mean(0)


make = GRPO
