"""The schema of a configuration: which keys there are, of which types, and what each of them is.

Values live in ``configs/``, the rules between them in :mod:`recurrl.validation`; here are neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

Value = TypeVar("Value")

NO_CELL = "none"
AUTO_DEVICE = "auto"

NATIVE = "vector_entry_point"
VECTORIZATIONS = ("inline", NATIVE)
"""What ``env.vectorization`` can be; ``NATIVE`` is Gymnasium's ``vectorization_mode`` of the same name."""

STORED, ZERO, BURN_IN, REFRESH = STATE_POLICIES = ("stored", "zero", "burn_in", "refresh")
"""What ``state`` can be: where the recurrent states that slices start from come from, see ``recurrl.states``."""


@dataclass
class EnvConfig:
    """An environment, and how many of it.

    Attributes:
        name: the name of this choice.
        source: the module of ``recurrl.envs`` that makes it.
        id: the environment's registered id.
        num_envs: copies stepped side by side, N.
        vectorization: ``inline`` (N single environments, stepped one after the other) or ``vector_entry_point`` (what
            the id has registered under that name: one that steps all N in one call).
        packages: packages to import first, because they register ids.
        mask: indices of the observation to hide from the policy.
        max_episode_steps: truncate after so many steps; null leaves the registered limit.
        reward_scale: rewards are multiplied by this for learning; reported returns are not.
        normalize_observation: normalise observations by running statistics, which are part of the policy.
        previous_action: show the policy the action before, zero at an episode's first step.
        previous_reward: likewise the reward before, unscaled.
        action_mask_from_info: the environment says in ``info["action_mask"]`` which actions are allowed. A mask that
            is the entry ``action_mask`` of a dict observation is found without being asked for.
        normalize_reward: divide rewards for learning by the running standard deviation of the discounted return.
        kwargs: further arguments of the environment's constructor.
    """

    name: str
    source: str
    id: str
    num_envs: int
    vectorization: str
    packages: list[str]
    mask: list[int]
    max_episode_steps: int | None
    reward_scale: float
    normalize_observation: bool
    previous_action: bool
    previous_reward: bool
    action_mask_from_info: bool
    normalize_reward: bool
    kwargs: dict[str, Any]


@dataclass
class CellConfig:
    """The recurrent cell; ``none`` puts a feed-forward layer of the same size in its place, as a control."""

    name: str
    hidden_size: int
    num_layers: int


@dataclass
class ChoiceConfig:
    """A group whose options have a name and nothing else."""

    name: str


@dataclass
class RecomputeConfig:
    """What the backward pass of the recurrent layer computes again instead of keeping it; ``chunk`` in pieces of
    ``chunk_len`` steps.
    """

    name: str
    chunk_len: int


@dataclass
class CollectorConfig:
    """Who steps the environments.

    Attributes:
        name: the module of ``recurrl.collector``.
        num_workers: processes that the environments divide among; 1 where there are none besides this one.
        timeout_s: seconds that a step of the environments of one process, or a reset, may take; null for any time.
        on_fault: what follows when environments or a worker fail: ``raise`` ends the run, ``restart`` makes them anew.
    """

    name: str
    num_workers: int
    timeout_s: float | None
    on_fault: str


@dataclass
class PolicyConfig:
    """The network around the cell.

    Attributes:
        encoder_sizes: widths of the layers between observation and cell, each followed by tanh; each entry of a dict
            observation has such layers of its own, and images have ``image_encoder`` instead.
        image_encoder: ``nature`` (Mnih et al. 2015) or ``impala`` (Espeholt et al. 2018).
        layer_norm: normalise the encoder's layers before their tanh, and what leaves the cell.
        residual: add what enters the cell to what leaves it.
        initial_std: standard deviation of continuous actions, in units of half the action range, before training.
        bounded_action: how bounded continuous actions keep within their bounds: ``clip`` (a Gaussian that the
            environment clips) or ``tanh`` (a squashed Gaussian).
    """

    encoder_sizes: list[int]
    image_encoder: str
    layer_norm: bool
    residual: bool
    initial_std: float
    bounded_action: str


@dataclass
class AlgorithmConfig:
    """Proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347), or group-relative policy
    optimisation (Shao et al. 2024, https://arxiv.org/abs/2402.03300), which has no critic.

    An option that an algorithm does not have is null in its yaml, and refused if it is given.

    Attributes:
        name: the module of ``recurrl.losses``.
        gamma: discount per step.
        clip_epsilon: clip range of the probability ratio at the start.
        clip_epsilon_high: that above 1, where it shall be another than below (null: the same).
        clip_final_fraction: what is left of both at the end; they fall linearly with frames. 1 is constant.
        entropy_coeff: weight of the entropy bonus at the start.
        entropy_final_fraction: likewise for ``entropy_coeff``.
        max_grad_norm: gradients are scaled down to this norm; null for no limit.
        target_kl: stop the epochs of an iteration once the approximate KL exceeds this; null for never.
        objective: PPO's: ``clip``, ``kl`` (a penalty on the KL from the policy that collected) or ``plain``.
        kl_coeff: weight of that penalty at the start; it is doubled and halved to hold the KL near ``desired_kl``.
        critic: ``shared`` (a head on the actor's trunk), ``recurrent`` (an encoder and a cell of its own, with its own
            states) or ``feedforward`` (an encoder and a layer of its own, without memory).
        lmbda: λ of generalised advantage estimation.
        critic_coeff: weight of the value loss.
        critic_loss: ``l2`` or ``smooth_l1``.
        clip_value: range the value may move from the stored one in the value loss; null for no clipping.
        normalize_advantage: to mean 0 and deviation 1: ``none``, within each ``minibatch``, or within the ``batch``.
        group_size: GRPO's: how many environments start alike and are compared.
        advantage: ``outcome`` (return less the group's mean) or ``process`` (return from each step on, likewise).
        divide_by_std: divide by the group's standard deviation too.
        drop_flat_groups: do not count groups without a difference between their members.
        aggregation: mean over each ``step``, or over each ``episode`` the mean over its steps.
        kl_to_ref_coeff: weight of the KL from the reference policy; 0 for no reference.
        ref_refresh_updates: the reference becomes the policy every so many iterations; null: it stays the first policy.
        kl_to_inference_coeff: weight of the KL from the policy that collected.
        kl_mask_threshold: steps whose squared log-ratio exceeds twice this are left out; null for none.
    """

    name: str
    gamma: float
    clip_epsilon: float
    clip_epsilon_high: float | None
    clip_final_fraction: float
    entropy_coeff: float
    entropy_final_fraction: float
    max_grad_norm: float | None
    target_kl: float | None
    objective: str | None
    kl_coeff: float | None
    critic: str | None
    lmbda: float | None
    critic_coeff: float | None
    critic_loss: str | None
    clip_value: float | None
    normalize_advantage: str | None
    group_size: int | None
    advantage: str | None
    divide_by_std: bool | None
    drop_flat_groups: bool | None
    aggregation: str | None
    kl_to_ref_coeff: float | None
    ref_refresh_updates: int | None
    kl_to_inference_coeff: float | None
    kl_mask_threshold: float | None

    @property
    def clip_range(self) -> tuple[float, float]:
        """How far below and above 1 the probability ratio may go."""
        return self.clip_epsilon, self.clip_epsilon if self.clip_epsilon_high is None else self.clip_epsilon_high

    @property
    def resets_rows(self) -> bool:
        """Whether every iteration begins with a reset of all environments."""
        return self.group_size is not None


@dataclass
class LoggerConfig:
    """Where metrics go besides ``metrics.csv``, which is always written.

    Attributes:
        name: ``csv``, ``tensorboard`` or ``wandb``.
        project: wandb's project.
        mode: wandb's mode: ``auto`` (online with a login, else offline), ``online`` or ``offline``.
        id: wandb's id of the run; null is that of the run that is gone on with, or a new one.
    """

    name: str
    project: str | None
    mode: str | None
    id: str | None


@dataclass
class CheckpointConfig:
    """When checkpoints are written: at the end, and every so many frames (null: only at the end).

    Of those of a run the last ``keep_last`` (null: all) and the best evaluated one are kept.
    """

    every_frames: int | None
    keep_last: int | None


@dataclass
class EvaluationConfig:
    """Evaluation by deterministic episodes.

    Attributes:
        episodes: how many.
        every_frames: every how many frames; null: only at the end.
        memory: at the end also without the policy's memory, see ``recurrl.evaluation``.
        random: at the end also with random actions, to compare with.
    """

    episodes: int
    every_frames: int | None
    memory: bool
    random: bool


@dataclass
class TrainConfig:
    """A training run. ``configs/train.yaml`` says what each key of it means."""

    env: EnvConfig
    cell: CellConfig
    backend: ChoiceConfig
    recompute: RecomputeConfig
    precision: ChoiceConfig
    algorithm: AlgorithmConfig
    collector: CollectorConfig
    logger: LoggerConfig
    policy: PolicyConfig
    checkpoint: CheckpointConfig
    evaluation: EvaluationConfig
    seed: int
    device: str
    num_threads: int | None
    compile: bool
    total_frames: int
    schedule_frames: int | None
    frames_per_batch: int
    slice_len: int
    state: str
    burn_in_len: int | None
    epochs: int
    minibatch_slices: int
    lr: float
    lr_schedule: str
    lr_final_fraction: float
    desired_kl: float
    max_skipped_steps: int
    replay_check: bool
    resume: str | None

    @property
    def steps_per_row(self) -> int:
        """T: the steps each environment takes an iteration."""
        return self.frames_per_batch // self.env.num_envs

    @property
    def slices_per_batch(self) -> int:
        """How many slices an iteration's frames are cut into."""
        return self.frames_per_batch // self.slice_len

    @property
    def iterations(self) -> int:
        """Iterations in ``total_frames``; a last one that would exceed it is left out."""
        return self.total_frames // self.frames_per_batch

    def progress(self, frames: int) -> float:
        """How far schedules have come after so many frames; from their last iteration on they stay where they are."""
        over = self.schedule_frames or self.total_frames
        last = (over // self.frames_per_batch - 1) * self.frames_per_batch
        return min(frames, last) / over


def given(value: Value | None) -> Value:
    """An option that the algorithm at hand has, so that its yaml gives it and :mod:`recurrl.validation` holds to it."""
    assert value is not None
    return value
