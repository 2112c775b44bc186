"""The schema of a configuration: its keys, their types and their meaning.

Values live in ``configs/``, the rules between them in :mod:`recurrl.validation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

Value = TypeVar("Value")

NO_CELL = "none"
AUTO_DEVICE = "auto"

NATIVE = "vector_entry_point"
VECTORIZATIONS = ("inline", NATIVE)
"""The values of ``env.vectorization``; ``NATIVE`` is Gymnasium's ``vectorization_mode`` of the same name."""

STORED, ZERO, BURN_IN, REFRESH = STATE_POLICIES = ("stored", "zero", "burn_in", "refresh")
"""The values of ``state``: the source of the recurrent states that slices start from, see ``recurrl.states``."""


@dataclass
class EnvConfig:
    """An environment and its number of copies.

    Attributes:
        name: the name of this choice.
        source: the module of ``recurrl.envs`` that makes it.
        id: the environment's registered id.
        num_envs: copies stepped side by side, N.
        vectorization: ``inline`` (N single environments, stepped one after the other) or ``vector_entry_point`` (the
            id's registered vector environment, which steps all N in one call).
        packages: packages to import first, which register ids.
        mask: indices of the observation to hide from the policy.
        max_episode_steps: truncate episodes after this many steps; null keeps the registered limit.
        reward_scale: rewards are multiplied by this for learning; reported returns are not.
        normalize_observation: normalise observations by running statistics, which are part of the policy.
        previous_action: show the policy its previous action, zero at an episode's first step.
        previous_reward: likewise the previous reward, unscaled.
        action_mask_from_info: the environment reports allowed actions in ``info["action_mask"]``. A mask in the entry
            ``action_mask`` of a dict observation is used automatically.
        normalize_reward: divide rewards for learning by the running standard deviation of the discounted return.
        kwargs: additional arguments for the environment's constructor.
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
    """A group whose options have only a name."""

    name: str


@dataclass
class RecomputeConfig:
    """Activations that the recurrent layer's backward pass recomputes instead of storing; ``chunk`` does so in pieces
    of ``chunk_len`` steps.
    """

    name: str
    chunk_len: int


@dataclass
class CollectorConfig:
    """The processes that step the environments.

    Attributes:
        name: the module of ``recurrl.collector``.
        num_workers: worker processes that share the environments; 1 for ``single``.
        timeout_s: time limit in seconds for a step or reset of one process's environments; null for none.
        on_fault: on failure of an environment or a worker, ``raise`` ends the run and ``restart`` recreates them all.
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
            observation has its own layers, and images use ``image_encoder`` instead.
        image_encoder: ``nature`` (Mnih et al. 2015) or ``impala`` (Espeholt et al. 2018).
        layer_norm: normalise the encoder's layers before their tanh, and the cell's output.
        residual: add the cell's input to its output.
        initial_std: standard deviation of continuous actions, in units of half the action range, before training.
        noise_correlation: of a continuous action's deviations from its mean at successive steps; 0 draws each by
            itself, as do actions of several parts.
        bounded_action: how bounded continuous actions stay within their bounds: ``clip`` (a Gaussian that the
            environment clips) or ``tanh`` (a squashed Gaussian).
    """

    encoder_sizes: list[int]
    image_encoder: str
    layer_norm: bool
    residual: bool
    initial_std: float
    noise_correlation: float
    bounded_action: str


@dataclass
class AlgorithmConfig:
    """Proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347), or group-relative policy
    optimisation (Shao et al. 2024, https://arxiv.org/abs/2402.03300), which has no critic.

    An option that an algorithm does not have is null in its yaml, and setting it is an error.

    Attributes:
        name: the module of ``recurrl.losses``.
        gamma: discount per step.
        clip_epsilon: initial clip range of the probability ratio.
        clip_epsilon_high: the range above 1, if it differs from the one below; null: the same.
        clip_final_fraction: the fraction of both left at the end; they fall linearly with frames. 1 is constant.
        entropy_coeff: initial weight of the entropy bonus; PPO's in units of the advantages' running root mean square.
        entropy_final_fraction: likewise for ``entropy_coeff``.
        max_grad_norm: gradients are clipped to this norm; null for no limit.
        target_kl: stop the epochs of an iteration once the approximate KL exceeds this; null for never.
        objective: PPO's: ``clip``, ``kl`` (a penalty on the KL from the policy that collected) or ``plain``.
        kl_coeff: initial weight of that penalty; doubled or halved to keep the KL near ``desired_kl``.
        critic: ``shared`` (a head on the actor's trunk), ``recurrent`` (its own encoder, cell and states) or
            ``feedforward`` (its own encoder and layer, without memory).
        lmbda: λ of generalised advantage estimation.
        critic_coeff: weight of the value loss.
        critic_loss: ``l2`` or ``smooth_l1``.
        clip_value: how far the value may move from the stored one in the value loss; null for no clipping.
        normalize_advantage: to mean 0 and standard deviation 1: ``none``, per ``minibatch`` or per ``batch``.
        group_size: GRPO's: how many environments start from the same state and are compared.
        advantage: ``outcome`` (return minus the group's mean) or ``process`` (likewise, the return from each step on).
        divide_by_std: also divide by the group's standard deviation.
        drop_flat_groups: ignore groups whose members all have the same return.
        aggregation: mean over each ``step``, or over each ``episode``'s mean over its steps.
        kl_to_ref_coeff: weight of the KL from the reference policy; 0 for no reference.
        ref_refresh_updates: iterations between updates of the reference to the policy; null keeps the initial one.
        kl_to_inference_coeff: weight of the KL from the policy that collected.
        kl_mask_threshold: steps whose squared log-ratio exceeds twice this are masked out; null for none.
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
        """The clip range of the probability ratio below and above 1."""
        return self.clip_epsilon, self.clip_epsilon if self.clip_epsilon_high is None else self.clip_epsilon_high

    @property
    def resets_rows(self) -> bool:
        """True if every iteration begins with a reset of all environments."""
        return self.group_size is not None


@dataclass
class LoggerConfig:
    """Where metrics go besides ``metrics.csv``, which is always written.

    Attributes:
        name: ``csv``, ``tensorboard`` or ``wandb``.
        project: wandb's project.
        mode: wandb's mode: ``auto`` (online with a login, else offline), ``online`` or ``offline``.
        id: wandb's run id; null is the resumed run's, or a new one.
    """

    name: str
    project: str | None
    mode: str | None
    id: str | None


@dataclass
class CheckpointConfig:
    """Checkpoints are written at the end and every ``every_frames`` frames (null: only at the end).

    The last ``keep_last`` (null: all) and the best evaluated one are kept.
    """

    every_frames: int | None
    keep_last: int | None


@dataclass
class EvaluationConfig:
    """Evaluation in deterministic episodes.

    Attributes:
        episodes: number of episodes.
        every_frames: interval in frames; null: only at the end.
        memory: at the end, also evaluate without the policy's memory, see ``recurrl.evaluation``.
        random: at the end, also evaluate random actions for comparison.
    """

    episodes: int
    every_frames: int | None
    memory: bool
    random: bool


@dataclass
class TrainConfig:
    """A training run. ``configs/train.yaml`` documents each key."""

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
        """T: steps per environment and iteration."""
        return self.frames_per_batch // self.env.num_envs

    @property
    def slices_per_batch(self) -> int:
        """Slices per iteration."""
        return self.frames_per_batch // self.slice_len

    @property
    def iterations(self) -> int:
        """Iterations in ``total_frames``, rounded down."""
        return self.total_frames // self.frames_per_batch

    def progress(self, frames: int) -> float:
        """The progress of schedules after ``frames``; constant from their last iteration on."""
        over = self.schedule_frames or self.total_frames
        last = (over // self.frames_per_batch - 1) * self.frames_per_batch
        return min(frames, last) / over


def given(value: Value | None) -> Value:
    """An option that this algorithm requires, which :mod:`recurrl.validation` has checked."""
    assert value is not None
    return value
