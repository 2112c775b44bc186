"""Group-relative policy optimisation for control: no critic, the group's other episodes are the baseline.

Shao et al. 2024, https://arxiv.org/abs/2402.03300; the wider clip range above 1 and the dropping of groups without a
spread are DAPO's, Yu et al. 2025, https://arxiv.org/abs/2503.14476.

Shape legend: B rows or slices, N environments, T steps.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, dispatch
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.objectives import PPOLoss

from recurrl.advantage import ADVANTAGE, COUNTED, COUNTED_LENGTH, add_group_advantages, advantage_metrics
from recurrl.config import TrainConfig, given
from recurrl.importance import check_one_a_step, clipped_gain, effective_sample_fraction, kl_from_log_weight
from recurrl.policy import ACTION, LOG_PROB, ActorCritic
from recurrl.recurrent import set_recurrent_mode
from recurrl.schedule import anneal

REF_LOG_PROB = "ref_log_prob"


class GRPOLoss(PPOLoss):
    """The clipped objective without a critic, over the steps that count, with penalties on two KLs.

    For a step with advantage A, ratio ρ = π(a) / π_collecting(a), and q = π_ref(a) / π(a)::

        loss_objective        = −min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A)
        loss_entropy          = −entropy_coeff · H(π)
        loss_kl_to_ref        = kl_to_ref_coeff · (q − 1 − log q)
        loss_kl_to_inference  = kl_to_inference_coeff · (1/ρ − 1 + log ρ)

    each aggregated as asked for. Entries of the output besides, each a mean over the steps that count:
    ``clip_fraction``, ``kl_approx`` (of −log ρ), ``kl`` (of ρ − 1 − log ρ), ``entropy``, ``kl_to_ref``,
    ``kl_to_inference``; and ``ESS``, the effective sample size as a fraction, 1 for data of the policy itself. What
    belongs to an option is there only with it.

    Args:
        actor_network: the policy; its parameters are used in place.
        clip_epsilon: ε, or the pair (ε_low, ε_high).
        entropy_bonus: add ``loss_entropy`` and ``entropy``.
        samples_mc_entropy: samples of the estimate where the entropy has no closed form.
        entropy_coeff: weight of the entropy.
        advantage_key: key of the advantages ``[B, T, 1]``; :meth:`set_keys` sets this and the others: ``action``,
            ``sample_log_prob``, ``ref_log_prob``, ``counted`` (bool ``[B, T, 1]``; all steps count without it) and
            ``counted_length`` (``[B, T, 1]``, how many steps of its episode count, for ``aggregation="episode"``).
        reduction: ``mean``; ``sum``; or ``none`` for losses ``[B, T]`` that are zero where a step does not count.
        aggregation: ``step`` (all steps weigh alike) or ``episode`` (all episodes do, and the steps of one alike).
            Weights come from ``counted_length``, so the parts of an episode may lie in several minibatches.
        clip_value: must be None: it would clip a value, and there is none.
        kl_to_ref_coeff: weight of the KL from the reference policy, whose log-probabilities are read; 0 for none.
        kl_to_inference_coeff: weight of the KL from the policy that collected.
        kl_mask_threshold: steps with (log ρ)² / 2 above this are left out of all losses.
        device: of the coefficients.

    Raises:
        ValueError: an option is out of range.
    """

    @dataclass
    class _AcceptedKeys(PPOLoss._AcceptedKeys):
        ref_log_prob: NestedKey = REF_LOG_PROB
        counted: NestedKey = COUNTED
        counted_length: NestedKey = COUNTED_LENGTH

    default_keys = _AcceptedKeys
    clip_epsilon_low: Tensor
    clip_epsilon_high: Tensor

    def __init__(
        self,
        actor_network: ProbabilisticTensorDictSequential,
        *,
        clip_epsilon: float | tuple[float, float] = 0.2,
        entropy_bonus: bool = True,
        samples_mc_entropy: int = 1,
        entropy_coeff: float = 0.01,
        advantage_key: NestedKey = ADVANTAGE,
        reduction: str = "mean",
        aggregation: str = "step",
        clip_value: None = None,
        kl_to_ref_coeff: float = 0.0,
        kl_to_inference_coeff: float = 0.0,
        kl_mask_threshold: float | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        low, high = clip_epsilon if isinstance(clip_epsilon, tuple) else (clip_epsilon, clip_epsilon)
        _require(
            0 <= low < 1 and high >= 0, f"clip_epsilon={clip_epsilon}: give numbers of 0 or above, the lower below 1."
        )
        _require(reduction in ("none", "mean", "sum"), f"reduction={reduction!r}: choose none, mean or sum.")
        _require(aggregation in ("step", "episode"), f"aggregation={aggregation!r}: choose step or episode.")
        _require(clip_value is None, f"clip_value={clip_value}: there is no value to clip. Leave it out.")
        super().__init__(
            actor_network,
            None,
            entropy_bonus=entropy_bonus,
            samples_mc_entropy=samples_mc_entropy,
            entropy_coeff=entropy_coeff,
            log_explained_variance=False,
            reduction=reduction,
            functional=False,
            device=device,
        )
        self.register_buffer("clip_epsilon_low", torch.tensor(low, dtype=torch.float64, device=device))
        self.register_buffer("clip_epsilon_high", torch.tensor(high, dtype=torch.float64, device=device))
        self.aggregation = aggregation
        self.kl_to_ref_coeff = kl_to_ref_coeff
        self.kl_to_inference_coeff = kl_to_inference_coeff
        self.kl_mask_threshold = kl_mask_threshold
        self.set_keys(advantage=advantage_key)

    def _set_in_keys(self) -> None:
        self._in_keys: list[NestedKey] | None = None

    @property
    def in_keys(self) -> list[NestedKey]:
        """The entries that are needed; the one that says which steps count may be missing."""
        keys = self.tensor_keys
        needed = [*self.actor_network.in_keys, keys.action, keys.sample_log_prob, keys.advantage]
        needed += [keys.ref_log_prob] if self.kl_to_ref_coeff else []
        needed += [keys.counted_length] if self.aggregation == "episode" else []
        return needed if self._in_keys is None else self._in_keys

    @in_keys.setter
    def in_keys(self, values: list[NestedKey]) -> None:
        self._in_keys = values

    @property
    def out_keys(self) -> list[NestedKey]:
        """The entries of the output."""
        keys: list[NestedKey] = ["loss_objective", "clip_fraction", "kl_approx", "kl", "ESS"]
        keys += ["loss_entropy", "entropy"] if self.entropy_bonus else []
        keys += ["loss_kl_to_ref", "kl_to_ref"] if self.kl_to_ref_coeff else []
        keys += ["loss_kl_to_inference", "kl_to_inference"] if self.kl_to_inference_coeff else []
        return keys if self._out_keys is None else self._out_keys

    @out_keys.setter
    def out_keys(self, values: list[NestedKey]) -> None:
        self._out_keys = values

    @dispatch  # type: ignore[untyped-decorator]
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The losses and diagnostics of a minibatch ``[B, T]``.

        Raises:
            KeyError: an entry is missing.
            ValueError: the policy gives more than one log-probability a step.
        """
        tensordict = tensordict.clone(False)
        keys = self.tensor_keys
        advantage = tensordict.get(keys.advantage)
        log_weight, distribution, _, _ = self._log_weight(tensordict, adv_shape=advantage.shape[:-1])
        check_one_a_step(log_weight, advantage.shape)
        counted = tensordict.get(keys.counted, None)
        counted = torch.ones_like(advantage, dtype=torch.bool) if counted is None else counted
        kept = counted
        if self.kl_mask_threshold is not None:
            kept = counted & (0.5 * log_weight**2 <= self.kl_mask_threshold)
        weight = kept.to(log_weight.dtype)
        if self.aggregation == "episode":
            weight = weight / tensordict.get(keys.counted_length).clamp(min=1)

        gain, outside = clipped_gain(log_weight, advantage, self.clip_epsilon_low, self.clip_epsilon_high)
        output = TensorDict({"loss_objective": self._aggregated(-gain, weight)})
        if self.entropy_bonus:
            entropy = self._get_entropy(distribution, adv_shape=advantage.shape[:-1])
            output["loss_entropy"] = self._aggregated(-self.entropy_coeff * entropy, weight)
            output["entropy"] = _mean(entropy, counted)
        if self.kl_to_ref_coeff:
            log_prob = tensordict.get(keys.sample_log_prob).unsqueeze(-1) + log_weight
            kl = kl_from_log_weight(tensordict.get(keys.ref_log_prob).view_as(log_prob) - log_prob)
            output["loss_kl_to_ref"] = self._aggregated(self.kl_to_ref_coeff * kl, weight)
            output["kl_to_ref"] = _mean(kl, counted)
        if self.kl_to_inference_coeff:
            kl = kl_from_log_weight(-log_weight)
            output["loss_kl_to_inference"] = self._aggregated(self.kl_to_inference_coeff * kl, weight)
            output["kl_to_inference"] = _mean(kl, counted)
        return output.update(_diagnostics(log_weight, outside, counted))

    def log_prob(self, tensordict: TensorDictBase) -> Tensor:
        """Log-probabilities ``[B, T]`` that the policy gives the actions in ``tensordict``, which stays as it is."""
        log_prob, _, _ = self._get_cur_log_prob(tensordict.clone(False))
        return log_prob

    def _aggregated(self, value: Tensor, weight: Tensor) -> Tensor:
        """``[B, T, 1]`` values by the weights of their steps: their mean, their sum, or each step's ``[B, T]``."""
        value = torch.where(weight > 0, value, 0.0)
        if self.reduction == "none":
            return value.squeeze(-1)
        total = (value * weight).sum()
        if self.reduction == "sum":
            return total
        # Where nothing counts the sum is zero, and so shall be the mean.
        return total / torch.where(weight.sum() > 0, weight.sum(), 1.0)


class GRPO:
    """Advantages relative to a group, the loss, and the reference policy if there is one.

    Args:
        config: the run's configuration.
        policy: the policy to improve, without a critic.
    """

    def __init__(self, config: TrainConfig, policy: ActorCritic) -> None:
        algorithm = config.algorithm
        self.config, self._policy = algorithm, policy
        self._iterations = 0
        self.loss = _make_loss(config, policy)
        self._reference = deepcopy(policy) if algorithm.kl_to_ref_coeff else None
        self._reference_loss = None if self._reference is None else _make_loss(config, self._reference)
        reference = () if self._reference is None else (REF_LOG_PROB,)
        read = (*policy.acting().in_keys, "is_init", ACTION, LOG_PROB, ADVANTAGE, COUNTED, COUNTED_LENGTH, *reference)
        self.keys = list(dict.fromkeys(read))
        low, high = algorithm.clip_range
        self._schedules = {
            "entropy_coeff": (algorithm.entropy_coeff, algorithm.entropy_final_fraction),
            "clip_epsilon_low": (low, algorithm.clip_final_fraction),
            "clip_epsilon_high": (high, algorithm.clip_final_fraction),
        }

    def begin_iteration(self, progress: float) -> None:
        """Sets clip range and entropy coefficient, and makes the policy the reference where that is due."""
        anneal(self.loss, self._schedules, progress)
        every = self.config.ref_refresh_updates
        if self._reference is not None and every is not None and self._iterations % every == 0:
            self._reference.load_state_dict(self._policy.state_dict())
        self._iterations += 1

    def prepare(self, batch_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Writes advantages, which steps count, and the reference policy's log-probabilities."""
        config = self.config
        metrics = add_group_advantages(
            batch_NT,
            reward_NT,
            group_size=given(config.group_size),
            gamma=config.gamma,
            kind=given(config.advantage),
            divide_by_std=given(config.divide_by_std),
            drop_flat_groups=given(config.drop_flat_groups),
        )
        if self._reference_loss is not None:
            # Rows begin with a reset, so the reference goes through its own states, not the policy's.
            with set_recurrent_mode(True), torch.no_grad():
                batch_NT.set(REF_LOG_PROB, self._reference_loss.log_prob(batch_NT))
        return {**metrics, **advantage_metrics(batch_NT[ADVANTAGE][batch_NT[COUNTED]])}

    def end_iteration(self, kl: float) -> None:
        """Nothing here follows the KL."""

    def state_dict(self) -> dict[str, Any]:
        """The reference policy, and the iterations that count towards its refresh."""
        reference = {} if self._reference is None else self._reference.state_dict()
        return {"iterations": self._iterations, "reference": reference}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._iterations = state["iterations"]
        if self._reference is not None:
            self._reference.load_state_dict(state["reference"])


def make_algorithm(config: TrainConfig, policy: ActorCritic) -> GRPO:
    """GRPO as configured."""
    return GRPO(config, policy)


def _make_loss(config: TrainConfig, policy: ActorCritic) -> GRPOLoss:
    algorithm = config.algorithm
    loss = GRPOLoss(
        policy.actor(),
        clip_epsilon=algorithm.clip_range,
        entropy_coeff=algorithm.entropy_coeff,
        aggregation=given(algorithm.aggregation),
        kl_to_ref_coeff=given(algorithm.kl_to_ref_coeff),
        kl_to_inference_coeff=given(algorithm.kl_to_inference_coeff),
        kl_mask_threshold=algorithm.kl_mask_threshold,
        device=config.device,
    )
    loss.set_keys(action=ACTION, sample_log_prob=LOG_PROB)
    return loss


@torch.no_grad()
def _diagnostics(log_weight: Tensor, outside: Tensor, counted: Tensor) -> dict[str, Tensor]:
    return {
        "clip_fraction": _mean(outside.to(log_weight.dtype), counted),
        "kl_approx": _mean(-log_weight, counted),
        "kl": _mean(kl_from_log_weight(log_weight), counted),
        "ESS": effective_sample_fraction(log_weight, counted),
    }


def _mean(value: Tensor, counted: Tensor) -> Tensor:
    """The mean over the steps that count; zero where there is none. Not part of what is minimised."""
    return torch.where(counted, value.detach(), 0.0).sum() / counted.sum().clamp(min=1)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
