"""recurrl's training loop."""

from benchmarks.configuration import configuration
from benchmarks.peers.task import HIDDEN, Task
from recurrl.build import make_algorithm, make_collector, make_policy_for, set_process_state
from recurrl.config import TrainConfig


def configured(task: Task) -> TrainConfig:
    """The training configuration for a task."""
    return configuration(
        f"cell={task.cell}",
        f"cell.hidden_size={task.hidden}",
        f"encoder.sizes=[{task.hidden}]",
        f"env.mask={list(HIDDEN)}",
        f"env.num_envs={task.envs}",
        f"frames_per_batch={task.frames}",
        f"slice_len={task.steps}",
        f"minibatch_slices={task.envs // task.minibatches}",
        f"total_frames={10**12}",
        "lr_final_fraction=1",
        "env.normalize_observation=false",
        "env.normalize_reward=false",
        "env.reward_scale=1",
        "policy.previous_action=false",
        f"epochs={task.epochs}",
        *("buffer=on_policy", "min_epochs_fraction=1"),  # the same work as the other loops
        f"lr={task.lr}",
        f"algorithm.gamma={task.gamma}",
        f"algorithm.lmbda={task.lmbda}",
        f"algorithm.clip_epsilon={task.clip}",
        f"seed={task.seed}",
        "device=cpu",
    )


class Ours:
    """Collector and algorithm built from a configuration."""

    def __init__(self, config: TrainConfig) -> None:
        self.config, self.frames = config, 0
        set_process_state(config)
        policy = make_policy_for(config)
        self.algorithm = make_algorithm(config, policy)
        self.collector = make_collector(config, policy)

    def collect(self) -> None:
        """Collects one rollout."""
        self.rollout = self.collector.collect()

    def learn(self) -> None:
        """Learns from the rollout."""
        self.algorithm.update(self.rollout, progress=self.frames / self.config.total_frames)
        self.frames += self.config.frames_per_batch


def make(task: Task) -> Ours:
    """Creates the loop."""
    return Ours(configured(task))
