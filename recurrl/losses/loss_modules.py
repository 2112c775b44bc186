"""The losses as TorchRL loss modules, for your own training loops on TensorDicts.

Shape legend: B rows, T steps.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from tensordict.utils import NestedKey
from torch import nn
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
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The losses and metrics of a minibatch ``[B, T]``.

        Raises:
            KeyError: an entry is missing.
            ValueError: the policy returns more than one log-probability per step.
        """
        keys, names = asdict(self.tensor_keys), asdict(self.default_keys())
        found = {names[field]: tensordict.get(key, None) for field, key in keys.items()}
        data = {name: value for name, value in found.items() if value is not None}
        seen = tensordict.copy()
        distribution = self.actor_network.get_dist(seen)
        value = None if self.critic_network is None else self.critic_network(seen).get(VALUE)
        losses = self.terms(distribution, value, data)
        terms = {f"loss_{name}": term for name, term in losses.terms.items()}
        return TensorDict({**terms, **{_entry(name): metric for name, metric in losses.metrics.items()}})


def _entry(metric: str) -> str:
    """A metric's name in TorchRL's losses."""
    room, _, name = metric.partition("/")
    if name == "effective_sample_size":
        return "ESS"
    return name if room == "policy" else f"{room}_{name}"


class GRPOLoss(TensorDictLoss):
    """:class:`recurrl.losses.grpo.GRPOTerms` for a policy on TensorDicts.

    Args:
        actor_network: the policy.
        advantage_key: key of the advantages ``[B, T, 1]``. ``set_keys`` sets this and the others: ``action``,
            ``sample_log_prob``, ``ref_log_prob``, ``loss_mask`` (optional: all steps count without it),
            ``episode_loss_steps``.
        clip_value: must be None, because there is no value to clip.
        device: of the coefficients.
        options: of ``GRPOTerms``.

    Raises:
        ValueError: an option is out of range.
    """

    @dataclass
    class _AcceptedKeys(TensorDictLoss._AcceptedKeys):
        ref_log_prob: NestedKey = REF_LOG_PROB
        loss_mask: NestedKey = LOSS_MASK
        episode_loss_steps: NestedKey = EPISODE_LOSS_STEPS

    default_keys = _AcceptedKeys

    def __init__(
        self,
        actor_network: TensorDictModuleBase,
        *,
        advantage_key: NestedKey = ADVANTAGE,
        clip_value: None = None,
        device: torch.device | str | None = None,
        **options: Any,
    ) -> None:
        if clip_value is not None:
            raise ValueError(f"clip_value={clip_value}: GRPO has no value to clip. Leave it out.")
        terms = GRPOTerms(**options).to(device)
        written: list[NestedKey] = ["loss_objective", "clip_fraction", "kl_approx", "kl", "ESS"]
        written += ["loss_entropy", "entropy"] if terms.entropy_bonus else []
        for name in ("kl_to_ref", "kl_to_inference"):
            written += [f"loss_{name}", name] if getattr(terms, f"{name}_coeff") else []
        super().__init__(terms, actor_network, None, written)
        self.set_keys(advantage=advantage_key)


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
