"""The losses as TorchRL loss modules, for your own training loops on TensorDicts.

Shape legend: B rows, T steps.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.objectives import LossModule

from recurrl.keys import ACTION, LOG_PROB, VALUE
from recurrl.losses.advantage import ADVANTAGE, EPISODE_LOSS_STEPS, LOSS_MASK, VALUE_TARGET
from recurrl.losses.grpo import REF_LOG_PROB, GRPOTerms
from recurrl.losses.ppo import PPOTerms


class TensorDictLoss(LossModule):
    """A loss on tensors as a TorchRL loss module.

    It runs the networks on a TensorDict ``[B, T]``, in recurrent mode like all loss modules, and returns the terms as
    ``loss_<name>``, and metrics. The networks' parameters are used in place.

    Args:
        terms: the loss on tensors.
        actor_network: the policy: a TensorDict module with ``get_dist``.
        critic_network: writes the value; None for a loss without a critic.
        written: the entries of the output.
    """

    @dataclass
    class _AcceptedKeys:
        """The entries that a loss reads. The defaults are their names in the loss on tensors."""

        action: NestedKey = ACTION
        sample_log_prob: NestedKey = LOG_PROB
        advantage: NestedKey = ADVANTAGE

    default_keys = _AcceptedKeys

    def __init__(
        self,
        terms: nn.Module,
        actor_network: TensorDictModuleBase,
        critic_network: TensorDictModuleBase | None,
        written: list[NestedKey],
    ) -> None:
        super().__init__()
        self.terms: Any = terms
        self.actor_network = actor_network
        self.critic_network = critic_network
        self.out_keys = written
        self.set_keys()

    def _forward_value_estimator_keys(self, **kwargs: Any) -> None:
        """Called when keys are set; there is no value estimator to forward them to."""
        networks = [self.actor_network] if self.critic_network is None else [self.actor_network, self.critic_network]
        read = [key for network in networks for key in network.in_keys]
        names, reads = asdict(self.default_keys()), set(self.terms.reads) - {LOSS_MASK}  # which is optional
        read += [key for field, key in asdict(self.tensor_keys).items() if names[field] in reads]
        self.in_keys = list(dict.fromkeys(read))

    @dispatch  # type: ignore[untyped-decorator]
    def forward(self, tensordict: TensorDictBase) -> Any:
        """The losses and metrics of a minibatch ``[B, T]``.

        Raises:
            KeyError: an entry is missing.
            ValueError: the policy returns more than one log-probability per step.
        """
        keys, names = asdict(self.tensor_keys), asdict(self.default_keys())
        found = {names[field]: tensordict.get(key, None) for field, key in keys.items()}
        data = {name: value for name, value in found.items() if value is not None}
        for field, key in keys.items():
            if names[field] in set(self.terms.reads) - {LOSS_MASK} and names[field] not in data:
                raise KeyError(
                    f"{type(self).__name__} needs the entry {key!r} ({field}), which is not in the TensorDict."
                )
        seen = tensordict.copy()
        distribution = self.actor_network.get_dist(seen)
        value = None if self.critic_network is None else self.critic_network(seen).get(VALUE)
        losses = self.terms(distribution, value, data)
        terms = {f"loss_{name}": term for name, term in losses.terms.items()}
        return self._output({**terms, **{_entry(name): metric for name, metric in losses.metrics.items()}})

    def _output(self, entries: dict[str, Tensor]) -> Any:
        return TensorDict(entries)


def _entry(metric: str) -> str:
    """A metric's name in TorchRL's losses."""
    room, _, name = metric.partition("/")
    if name == "effective_sample_size":
        return "ESS"
    return name if room == "policy" else f"{room}_{name}"


class GRPOLoss(TensorDictLoss):
    """:class:`recurrl.losses.grpo.GRPOTerms` for a policy on TensorDicts.

    Takes the place of ``torchrl.objectives.llm.GRPOLoss``; docs/torchrl.md lists the differences. Its output is a
    :class:`~recurrl.losses.grpo_output.GRPOLossOutput`.

    Args:
        actor_network: the policy.
        clip_epsilon: as for ``GRPOTerms``, like ``entropy_bonus``, ``samples_mc_entropy`` and ``entropy_coeff``.
        kl_mask_threshold: likewise; 0 for None.
        aggregation: likewise; None for ``token_mean``.
        gamma: no effect, as in TorchRL.
        reduction: likewise; None for ``mean``.
        clip_value: no effect, as in TorchRL: there is no value to clip.
        kl_to_ref_coeff: likewise; None for 0.
        kl_to_inference_coeff: likewise.
        device: of the coefficients.
        advantage_key: key of the advantages ``[B, T, 1]``. ``set_keys`` sets this and the others: ``action``,
            ``sample_log_prob``, ``ref_log_probs``, ``loss_mask`` (optional: all steps count without it),
            ``episode_loss_steps``.
        functional: no effect, as in TorchRL: the network's parameters are used in place.

    Raises:
        ValueError: an option is out of range.
    """

    @dataclass
    class _AcceptedKeys(TensorDictLoss._AcceptedKeys):
        ref_log_probs: NestedKey = REF_LOG_PROB
        loss_mask: NestedKey = LOSS_MASK
        episode_loss_steps: NestedKey = EPISODE_LOSS_STEPS

    default_keys = _AcceptedKeys
    default_value_estimator = None

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
        terms = GRPOTerms(
            clip_epsilon=clip_epsilon,
            kl_mask_threshold=kl_mask_threshold or None,
            aggregation=aggregation or "token_mean",
            entropy_bonus=entropy_bonus,
            samples_mc_entropy=samples_mc_entropy,
            entropy_coeff=entropy_coeff,
            reduction=reduction or "mean",
            kl_to_ref_coeff=kl_to_ref_coeff or 0.0,
            kl_to_inference_coeff=kl_to_inference_coeff or 0.0,
        ).to(device)
        written: list[NestedKey] = ["loss_objective", "clip_fraction", "kl_approx", "kl", "ESS"]
        written += ["loss_entropy", "entropy"] if terms.entropy_bonus else []
        for name in ("kl_to_ref", "kl_to_inference"):
            written += [f"loss_{name}", name] if getattr(terms, f"{name}_coeff") else []
        super().__init__(terms, actor_network, None, written)
        self.set_keys(advantage=advantage_key)

    @property
    def output_type(self) -> type:
        """The class of the output."""
        from recurrl.losses.grpo_output import GRPOLossOutput  # with torchrl's language models, which runs do not need

        return GRPOLossOutput

    def _output(self, entries: dict[str, Tensor]) -> Any:
        return self.output_type(**entries)


class PPOLoss(TensorDictLoss):
    """:class:`recurrl.losses.ppo.PPOTerms` for a policy and a critic on TensorDicts.

    Args:
        actor_network: the policy.
        critic_network: the critic; it writes ``state_value``, and may read what the policy wrote, such as features.
        device: of the coefficients.
        options: of ``PPOTerms``. ``set_keys`` sets the entries that are read: ``action``, ``sample_log_prob``,
            ``advantage``, ``value`` (that of collection) and ``value_target``.
    """

    @dataclass
    class _AcceptedKeys(TensorDictLoss._AcceptedKeys):
        value: NestedKey = VALUE
        value_target: NestedKey = VALUE_TARGET

    default_keys = _AcceptedKeys

    def __init__(
        self,
        actor_network: TensorDictModuleBase,
        critic_network: TensorDictModuleBase,
        *,
        device: torch.device | str | None = None,
        **options: Any,
    ) -> None:
        terms = PPOTerms(**options).to(device)
        written: list[NestedKey] = ["loss_objective", "loss_critic", "loss_entropy"]
        written += ["entropy", "kl_approx", "kl", "ESS"]
        written += ["clip_fraction"] if terms.objective == "clip" else []
        written += ["loss_kl"] if terms.objective == "kl" else []
        written += ["value_clip_fraction"] if terms.clip_value is not None else []
        super().__init__(terms, actor_network, critic_network, written)
