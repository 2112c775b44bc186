"""Options of algorithms."""

from dataclasses import dataclass
from typing import ClassVar

from recurrl.config.options import BELOW_ONE, FRACTION, POSITIVE, RATE, SCALE, STEPS, WEIGHT, Condition, option

NORMALIZATIONS = ("none", "minibatch", "batch")
BONUS = Condition("algorithm.entropy_coeff above 0", lambda run: run.algorithm.entropy_coeff != 0)
DISCOUNT = Condition("algorithm.gamma above 0", lambda run: run.algorithm.gamma > 0)
VALUE_LOSS = Condition("algorithm.critic_coeff above 0", lambda run: run.algorithm.critic_coeff > 0)
OWN_CRITIC = Condition("algorithm.critic=recurrent or feedforward", lambda run: run.algorithm.critic != "shared")
PPO_ACTIVE = Condition(
    "algorithm.weight or algorithm.weight_final_fraction below 1", lambda run: run.algorithm.reinforces
)
PPO_BONUS = Condition(
    "algorithm.entropy_coeff above 0, and algorithm.weight or algorithm.weight_final_fraction below 1",
    lambda run: run.algorithm.reinforces and run.algorithm.entropy_coeff != 0,
)
REFERENCE = Condition("algorithm.kl_to_ref_coeff above 0", lambda run: run.algorithm.kl_to_ref_coeff > 0)


@dataclass
class AlgorithmConfig:
    """The options that all algorithms have; an algorithm with further options derives a dataclass from this one."""

    name: str = option("the algorithm")
    gamma: float = option("discount per step", FRACTION)
    max_grad_norm: float | None = option("gradients are clipped to this norm; null: not at all", POSITIVE)
    target_kl: float | None = option("approximate KL above which an iteration's epochs end; null: none", POSITIVE)
    is_off_policy_corrected: ClassVar[bool] = False
    """True if the advantages are correct for rows that stale weights collected."""

    @property
    def critic_kind(self) -> str | None:
        """``shared`` (on the actor's trunk), ``recurrent`` or ``feedforward`` (on its own); None without one."""
        return None

    @property
    def critic_only(self) -> tuple[str, ...]:
        """The entries of the observation that the critic sees and the actor does not."""
        return ()

    @property
    def envs_per_group(self) -> int | None:
        """The number of environments that start every row from the same state; None if episodes span rows."""
        return None

    @property
    def follows_schedule(self) -> bool:
        """False if nothing in the algorithm changes with the progress of the run.

        Then a value that the user sets for ``schedule_frames`` is an error, unless the learning rate falls.
        """
        return True


@dataclass
class ClippedConfig(AlgorithmConfig):
    """Options of algorithms with a clipped probability ratio and an entropy bonus."""

    clip_epsilon: float = option("clip range of the probability ratio", BELOW_ONE)
    clip_epsilon_high: float | None = option("clip range above 1; null: clip_epsilon", SCALE)
    entropy_coeff: float | None = option(
        "weight of the entropy bonus; PPO: in units of the advantages' running RMS; null: 0.02, or 0.04 with "
        "continuous actions",
        WEIGHT,
    )
    entropy_final_fraction: float = option(
        "fraction of entropy_coeff at the end; 1: constant", FRACTION, only_with=BONUS
    )

    @property
    def follows_schedule(self) -> bool:
        """True if the entropy bonus follows the schedule."""
        return self.entropy_coeff != 0 and self.entropy_final_fraction != 1

    def bonus(self, continuous: bool) -> float:
        """``entropy_coeff``, or its default for this kind of action."""
        if self.entropy_coeff is None:
            return 0.04 if continuous else 0.02
        return self.entropy_coeff


@dataclass
class PPOConfig(ClippedConfig):
    """Proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347)."""

    critic: str = option(
        "shared (a head on the actor's trunk), recurrent (its own encoder, cell and states) or feedforward (its own "
        "encoder and layer, without memory)",
        choices=("shared", "recurrent", "feedforward"),
    )
    critic_observation: list[str] = option(
        "what only the critic sees: entries of the observation; privileged: what env.mask or a memory task hides",
        only_with=OWN_CRITIC,
    )
    lmbda: float = option("λ of the advantages", FRACTION, only_with=DISCOUNT)
    horizon_fraction: float | None = option(
        "discount horizon as a fraction of the longest episode, while episodes are about equally long and the best "
        "reward before their end is not 0; null, or below 10 steps: gamma's",
        POSITIVE,
        only_with=DISCOUNT,
    )
    critic_coeff: float = option("weight of the value loss", WEIGHT)
    clip_value: float | None = option(
        "largest distance of the value from the stored one in the value loss; null: any", POSITIVE, only_with=VALUE_LOSS
    )
    normalize_advantage: str = option(
        "normalise advantages to mean 0 and standard deviation 1: none, minibatch or batch; amplifies noise "
        "where all advantages are near zero",
        choices=NORMALIZATIONS,
    )

    @property
    def critic_kind(self) -> str | None:
        """The option ``critic``."""
        return self.critic

    @property
    def critic_only(self) -> tuple[str, ...]:
        """The option ``critic_observation``."""
        return tuple(self.critic_observation)

    is_off_policy_corrected = True  # by V-trace


@dataclass
class DistillConfig(PPOConfig):
    """Imitation of a teacher that sees more, alone or combined with PPO (Ross et al. 2011, https://arxiv.org/abs/1011.0686)."""

    critic_observation: list[str] = option(
        "what only the teacher and a critic on its own trunk see: entries of the observation; privileged: what "
        "env.mask or a memory task hides"
    )
    entropy_coeff: float | None = option(
        "weight of the entropy bonus, in units of the advantages' running RMS; null: 0.02, or 0.04 with continuous "
        "actions",
        WEIGHT,
        only_with=PPO_ACTIVE,
    )
    entropy_final_fraction: float = option(
        "fraction of entropy_coeff at the end; 1: constant", FRACTION, only_with=PPO_BONUS
    )
    normalize_advantage: str = option(
        "normalise advantages: none, minibatch or batch", choices=NORMALIZATIONS, only_with=PPO_ACTIVE
    )
    teacher: str = option("what to imitate: a run, module:function, or a policy as .onnx or TorchScript .pt")
    weight: float = option("weight of the imitation loss; PPO's objective and entropy bonus have 1 minus this", RATE)
    weight_final_fraction: float = option("fraction of weight at the end; 1: constant", FRACTION)

    @property
    def reinforces(self) -> bool:
        """True unless the weight of imitation is 1 throughout."""
        return self.weight * self.weight_final_fraction < 1

    @property
    def follows_schedule(self) -> bool:
        """True if the weight of imitation or the entropy bonus follows the schedule."""
        return self.weight_final_fraction != 1 or (self.reinforces and super().follows_schedule)


@dataclass
class GRPOConfig(ClippedConfig):
    """Group-relative policy optimisation (Shao et al. 2024, https://arxiv.org/abs/2402.03300), without a critic."""

    group_size: int = option("environments that start from one state and are compared; must divide env.num_envs")
    advantage: str = option(
        "outcome (an episode's return minus the group's mean) or process (at each step, the return from there on minus "
        "its mean over the group)",
        choices=("outcome", "process"),
    )
    divide_by_std: bool = option("also divide by the group's standard deviation")
    drop_flat_groups: bool = option("leave out groups in which all advantages are zero")
    aggregation: str = option(
        "how the loss is averaged: step (over all steps) or episode (over each episode's steps, then over episodes)",
        choices=("step", "episode"),
    )
    kl_to_ref_coeff: float = option("weight of the KL from the reference policy; 0: no reference", WEIGHT)
    ref_refresh_iterations: int | None = option(
        "iterations between updates of the reference policy; null: it stays the first", STEPS, only_with=REFERENCE
    )

    @property
    def envs_per_group(self) -> int | None:
        """The option ``group_size``."""
        return self.group_size
