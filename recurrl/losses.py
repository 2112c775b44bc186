"""GRPO's loss as a TorchRL loss module, for your own training loops on TensorDicts.

For PPO use TorchRL's ``ClipPPOLoss``: it works with :class:`recurrl.policy.PolicyModule`.

Shape legend: B rows, T steps.
"""

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.objectives import LossModule
from torchrl.objectives.llm import grpo

from recurrl.algorithms.grpo import EPISODE_LOSS_STEPS, REF_LOG_PROB, grpo_loss
from recurrl.algorithms.importance import log_range, mean_of, ratio_metrics
from recurrl.errors import require
from recurrl.keys import ACTION, ADVANTAGE, LOG_PROB, LOSS_MASK

__all__ = ["GRPOLoss", "GRPOLossOutput"]


class GRPOLossOutput(grpo.GRPOLossOutput):
    """The output of TorchRL's ``GRPOLoss``, with one more field. ``output["loss_objective"]`` reads a field by name.

    Attributes:
        kl: an estimate of the KL that is never negative; TorchRL's ``kl_approx`` may be negative, and varies more.
    """

    kl: Tensor | None = None

    def __getitem__(self, item: Any) -> Any:
        return self.get(item) if isinstance(item, str) else super().__getitem__(item)


class GRPOLoss(LossModule):
    """GRPO's loss, :func:`recurrl.algorithms.grpo.grpo_loss`, for a policy on TensorDicts ``[B, T]``.

    Takes the place of ``torchrl.objectives.llm.GRPOLoss``; docs/torchrl.md lists the differences. The network runs in
    recurrent mode, as in all of TorchRL's loss modules, and its parameters are used in place.

    Args:
        actor_network: the policy: a TensorDict module with ``get_dist``.
        clip_epsilon: ε of the clip range, or the pair (ε_low, ε_high).
        kl_mask_threshold: must be None or 0: no step is masked by its ratio.
        aggregation: ``step`` or ``episode``; ``token_mean`` and None are ``step``.
        entropy_bonus: add the entropy term.
        samples_mc_entropy: samples for estimating an entropy without a closed form.
        entropy_coeff: weight of the entropy.
        gamma: no effect, as in TorchRL.
        reduction: must be ``mean`` or None.
        clip_value: no effect, as in TorchRL: there is no value to clip.
        kl_to_ref_coeff: weight of the KL from the reference policy; None for 0.
        kl_to_inference_coeff: must be None or 0: rollouts use the learner's own policy.
        device: the device of the coefficients.
        advantage_key: key of the advantages ``[B, T, 1]``. ``set_keys`` sets this and the others: ``action``,
            ``sample_log_prob``, ``ref_log_probs``, ``loss_mask`` (optional: all steps count without it),
            ``episode_loss_steps``.
        functional: no effect, as in TorchRL: the network's parameters are used in place.

    Raises:
        ValueError: an option is out of range.
    """

    @dataclass
    class _AcceptedKeys:
        """The entries that the loss reads. The defaults are their names in rollouts."""

        action: NestedKey = ACTION
        sample_log_prob: NestedKey = LOG_PROB
        advantage: NestedKey = ADVANTAGE
        ref_log_probs: NestedKey = REF_LOG_PROB
        loss_mask: NestedKey = LOSS_MASK
        episode_loss_steps: NestedKey = EPISODE_LOSS_STEPS

    default_keys = _AcceptedKeys
    default_value_estimator = None
    output_type = GRPOLossOutput

    def __init__(
        self,
        actor_network: TensorDictModuleBase,
        *,
        clip_epsilon: float | tuple[float, float] = 0.2,
        kl_mask_threshold: float | None = None,
        aggregation: str | None = "token_mean",
        entropy_bonus: bool = True,
        samples_mc_entropy: int = 1,
        entropy_coeff: float = 0.01,
        gamma: float | None = None,
        reduction: str | None = None,
        clip_value: bool | float | None = None,
        kl_to_ref_coeff: float | None = None,
        kl_to_inference_coeff: float | None = None,
        device: torch.device | str | None = None,
        advantage_key: NestedKey = ADVANTAGE,
        functional: bool | None = None,
    ) -> None:
        super().__init__()
        require(reduction in (None, "mean"), f"reduction must be mean (got {reduction!r}).")
        for name, value in (("kl_mask_threshold", kl_mask_threshold), ("kl_to_inference_coeff", kl_to_inference_coeff)):
            require(not value, f"{name} must be None (got {value}). Use torchrl.objectives.llm.GRPOLoss.")
        self.actor_network = actor_network
        self.aggregation = "step" if aggregation in (None, "token_mean") else aggregation
        require(
            self.aggregation in ("step", "episode"), f"aggregation must be one of step, episode (got {aggregation!r})."
        )
        self.log_clip_range = log_range(*(clip_epsilon if isinstance(clip_epsilon, tuple) else (clip_epsilon, None)))
        self.entropy_coeff = nn.Buffer(torch.tensor(entropy_coeff, device=device), persistent=False)
        self.entropy_bonus, self.samples_mc_entropy = entropy_bonus, samples_mc_entropy
        self.kl_to_ref_coeff = kl_to_ref_coeff or 0.0
        self.out_keys = ["loss_objective", "clip_fraction", "kl_approx", "kl", "ESS"]
        self.out_keys += ["loss_entropy", "entropy"] if entropy_bonus else []
        self.out_keys += ["loss_kl_to_ref", "kl_to_ref"] if kl_to_ref_coeff else []
        self.set_keys(advantage=advantage_key)

    def _forward_value_estimator_keys(self, **kwargs: Any) -> None:
        """Called when keys are set; there is no value estimator to forward them to."""
        fields = ["action", "sample_log_prob", "advantage"]
        fields += ["ref_log_probs"] if self.kl_to_ref_coeff else []
        fields += ["episode_loss_steps"] if self.aggregation == "episode" else []
        # The keys of the required entries, by their names in rollouts.
        self._required = {getattr(self.default_keys, field): getattr(self.tensor_keys, field) for field in fields}
        self.in_keys = list(dict.fromkeys([*self.actor_network.in_keys, *self._required.values()]))

    @dispatch  # type: ignore[untyped-decorator]
    def forward(self, tensordict: TensorDictBase) -> GRPOLossOutput:
        """The losses and metrics of a minibatch ``[B, T]``.

        Raises:
            KeyError: an entry is missing.
            ValueError: the policy returns more than one log-probability per step.
        """
        data = {name: tensordict[key] for name, key in self._required.items()}
        if self.tensor_keys.loss_mask in tensordict:
            data[LOSS_MASK] = tensordict[self.tensor_keys.loss_mask]
        losses = grpo_loss(
            self.actor_network.get_dist(tensordict.copy()),
            data,
            self.log_clip_range,
            self.entropy_coeff if self.entropy_bonus else None,
            self.aggregation,
            self.kl_to_ref_coeff,
            self.samples_mc_entropy,
        )
        assert losses.log_ratio is not None
        assert losses.mask is not None
        ratios = ratio_metrics(losses.log_ratio.flatten(), losses.mask.flatten(), self.log_clip_range)
        metrics = {name.removeprefix("policy/"): value for name, value in {**losses.metrics, **ratios}.items()}
        return GRPOLossOutput(
            **{f"loss_{name}": term for name, term in losses.terms.items()},
            kl_approx=-mean_of(losses.log_ratio, losses.mask),
            ESS=metrics.pop("effective_sample_fraction"),
            **metrics,
        )
