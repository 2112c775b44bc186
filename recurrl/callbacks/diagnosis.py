"""Warnings that a run does not learn, each with the figure that shows it and what to try."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from recurrl.callbacks import Callback
from recurrl.returns import WINDOW, return_format

if TYPE_CHECKING:
    from recurrl.trainer import Trainer

logger = logging.getLogger(__name__)

Metrics = Mapping[str, float]

_LARGER = "a larger env.reward_scale if discounted returns vary by less than 1"
_SCALE = f"env.normalize_reward=true, which is the default; {_LARGER}"
_EXPLORE = (
    "experiment=rare_rewards; a larger algorithm.entropy_coeff or, for continuous actions, policy.noise_correlation=0.9"
)
RANDOM = "No better than random actions"
ENTROPY = "Entropy collapsed"
ADVANTAGES = "Advantages near zero"
GRADIENTS = "Gradients near zero"
CRITIC = "Explained variance near zero"
NOISE = "Gradients mostly noise"
TRUNCATED = "Every episode truncated"
MEMORY = "Memory not used"
SAMPLED = "Better when sampled"
WARNINGS = {
    RANDOM: f"more total_frames; {_EXPLORE}; {_SCALE}",
    ENTROPY: "a larger algorithm.entropy_coeff; a smaller lr",
    ADVANTAGES: _EXPLORE,
    GRADIENTS: f"{_EXPLORE}; {_LARGER}; a smaller lr",
    CRITIC: (
        f"{_SCALE}; a larger frames_per_batch; observations that show what rewards depend on, or a longer slice_len"
    ),
    NOISE: "epochs=4; lr=5e-4; more total_frames",
    TRUNCATED: f"{_EXPLORE}; a larger env.max_episode_steps",
    MEMORY: "cell=none, which is faster, if the task needs no memory; else a longer slice_len or more total_frames",
    SAMPLED: (
        "acting with sampled actions when deployed, too (recurrl-evaluate --sampled compares); more total_frames, "
        "after which a policy is less random; for continuous actions policy.previous_action=true, so that the policy "
        "sees its own last action"
    ),
}
"""What to try, by the title of the warning. docs/not-learning.md explains each warning."""

MEAN, STD, EPISODES = "train/return_mean", "train/return_std", "train/episodes"
RANDOM_MEAN = "eval/return_mean_random"

MIN_ITERATIONS = 20
"""A warning is due once its condition has held for half of the run's iterations in a row, and for at least this many.

After the last evaluation a quarter is enough. Before, a reward that is hard to find may still be found.
"""
MIN_EPISODES = 10
"""Returns are compared with those of the first iteration after which this many episodes have ended."""

MIN_ENTROPY = 0.02
"""Entropy of discrete actions, in nats: about one action in 300 is not the most probable one."""
MIN_STD = 0.02
"""Standard deviation of continuous actions that counts as collapsed, as a fraction of ``policy.initial_std``."""
MIN_ADVANTAGE = 0.01
"""The advantages' standard deviation, as a fraction of the largest value targets so far."""
MIN_GRADIENT = 1e-3
"""The gradient's norm, as a fraction of the norm that it is clipped to. Its entries are then near Adam's eps."""
SOME_EXPLAINED, EXPLAINED_ITERATIONS = 0.05, 0.1
"""An explained variance up to the first number is chance. So are larger ones, if they occur in no more than the second
number's share of the iterations.
"""
MIN_SIGNAL = 0.02
"""The share of signal in an epoch's gradient. At this value the noise scale is 49 times the frames of an iteration."""
MIN_MEMORY_GAIN = 0.05
"""A policy uses its memory if it would lose more than this fraction of its gain over random actions without it."""
MAX_LOST_GAIN = 0.2
"""The fraction of its gain over random actions that a policy may lose by playing its most probable actions."""

_STATE = ("iterations", "explained", "largest_target", "first", "lasting", "issued")


class Diagnosis(Callback):
    """Detects from a run's metrics that it does not learn.

    An optimal policy may be deterministic, have nothing left to gain, and have all its episodes truncated. So such
    conditions cause warnings only while returns are no higher than at first or, once random actions have been
    evaluated, if the policy is no better than random.

    Args:
        iterations: the iterations of the whole run.
        max_grad_norm: the norm that gradients are clipped to; None if they are not.
        continuous: the number of continuous entries of an action.
        initial_std: the initial standard deviation of these entries.
    """

    def __init__(self, iterations: int, max_grad_norm: float | None, continuous: int, initial_std: float) -> None:
        self._total_iterations = iterations
        self._max_grad_norm = max_grad_norm or 1.0
        normal = 0.5 * math.log(2 * math.pi * math.e) + math.log(MIN_STD * initial_std)
        self._min_entropy = continuous * normal if continuous else MIN_ENTROPY
        self._iterations, self._explained, self._largest_target = 0, 0, 0.0
        self._first: dict[str, float] = {}
        self._lasting: dict[str, int] = {}
        self._issued: list[str] = []

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Logs the warnings that are due for the first time."""
        if trainer.summary.frames_here == 0:
            return  # a resumed run repeats this iteration, which the restored state includes
        for warning in self.update(metrics):
            logger.warning("After %d frames: %s", trainer.frames, warning)

    def update(self, metrics: Metrics) -> list[str]:
        """Adds the metrics of an iteration, and returns the warnings that are due for the first time."""
        self._iterations += 1
        self._explained += metrics.get("value/explained_variance", math.inf) > SOME_EXPLAINED
        target = abs(metrics.get("value/target_mean", 0.0)) + metrics.get("value/target_std", 0.0)
        self._largest_target = max(self._largest_target, target)
        if not self._first and metrics[EPISODES] >= MIN_EPISODES:
            self._first = {name: metrics[name] for name in (MEAN, STD, EPISODES)}
        self._lasting = {title: self._lasting.get(title, 0) + 1 for title, _ in self._conditions(metrics)}
        new = {title: line for title, line in self.warnings(metrics).items() if title not in self._issued}
        self._issued += new
        return list(new.values())

    def warnings(self, metrics: Metrics) -> dict[str, str]:
        """The warnings that are due, by title, one line each.

        Args:
            metrics: the last iteration's metrics, with those of its evaluation if there was one.
        """
        is_compared = RANDOM_MEAN in metrics
        figures = dict(_no_better_than_random(metrics)) if is_compared else {}
        learns = not figures if is_compared else self._improved(metrics)
        if not learns:
            figures |= self._lasting_conditions(metrics)
        elif "eval/return_mean_zeroed_state" in metrics:
            figures |= _memory_not_used(metrics)
        if is_compared:
            figures |= _better_when_sampled(metrics)
        return {title: f"{title}: {figure}. Try {WARNINGS[title]}." for title, figure in figures.items()}

    def _lasting_conditions(self, metrics: Metrics) -> dict[str, str]:
        """The conditions that have held for long enough, with their figures."""
        needed = max(MIN_ITERATIONS, self._total_iterations // (4 if RANDOM_MEAN in metrics else 2))
        first = self._first or {MEAN: math.nan, STD: math.nan}
        returns = f"with returns of {_spread(metrics[MEAN], metrics[STD])}, at first {_spread(first[MEAN], first[STD])}"
        return {
            title: f"{figure}; for {self._lasting[title]} iterations, {returns}"
            for title, figure in self._conditions(metrics)
            if self._lasting.get(title, 0) >= needed
        }

    def _conditions(self, metrics: Metrics) -> Iterator[tuple[str, str]]:
        """The conditions that hold now, by the titles of their warnings, with their figures."""
        entropy = metrics.get("policy/entropy", math.inf)
        if entropy < self._min_entropy:
            yield ENTROPY, f"{entropy:.2g} nats, below {self._min_entropy:.2g}"
        std = metrics.get("advantage/std", math.inf)
        if std < MIN_ADVANTAGE * self._largest_target:
            yield ADVANTAGES, f"a standard deviation of {std:.2g}, where values reach {self._largest_target:.3g}"
        norm = metrics.get("optim/grad_norm", math.inf) if metrics["optim/steps"] else 0.0
        if norm < MIN_GRADIENT * self._max_grad_norm:
            yield GRADIENTS, f"a norm of {norm:.2g}"
        if self._explained <= EXPLAINED_ITERATIONS * self._iterations:
            yield CRITIC, f"above {SOME_EXPLAINED} in {self._explained} of {self._iterations} iterations"
        signal = metrics.get("optim/signal", 1.0)
        if signal < MIN_SIGNAL:
            yield NOISE, f"a share of signal of {signal:.2g}, below {MIN_SIGNAL}"
        if metrics["train/truncated_fraction"] == 1:
            yield TRUNCATED, f"after {metrics['train/episode_length_mean']:.4g} steps on average"

    def _improved(self, metrics: Metrics) -> bool:
        """True if returns are higher than at first by two standard errors of the difference, or not known yet."""
        if not self._first:
            return True
        variance = sum(each[STD] ** 2 / min(each[EPISODES], WINDOW) for each in (metrics, self._first))
        rounding = 1e-9 * abs(self._first[MEAN])
        return metrics[MEAN] > self._first[MEAN] + 2 * math.sqrt(variance) + rounding

    def state_dict(self) -> dict[str, Any]:
        """The counts so far, for checkpoints, so that a resumed run warns like one that was not interrupted."""
        return {name: getattr(self, f"_{name}") for name in _STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the counts."""
        for name in _STATE:
            setattr(self, f"_{name}", state[name])


def _no_better_than_random(metrics: Metrics) -> Iterator[tuple[str, str]]:
    mean, std = metrics["eval/return_mean"], metrics["eval/return_std"]
    random, random_std = metrics[RANDOM_MEAN], metrics["eval/return_std_random"]
    if not mean > random + math.hypot(std, random_std) / math.sqrt(metrics["eval/episodes"]):
        yield RANDOM, f"a return of {_spread(mean, std)}, against {_spread(random, random_std)}"


def _memory_not_used(metrics: Metrics) -> Iterator[tuple[str, str]]:
    mean, zeroed, shuffled = (metrics[f"eval/return_mean{of}"] for of in ("", "_zeroed_state", "_shuffled_state"))
    if not mean - min(zeroed, shuffled) > MIN_MEMORY_GAIN * abs(mean - metrics.get(RANDOM_MEAN, 0.0)):
        form = return_format(mean)
        memories = f"{zeroed:{form}} with its memory zeroed and {shuffled:{form}} with another episode's"
        figure = f"a return of {mean:{form}}, {memories}"
        yield MEMORY, figure


def _better_when_sampled(metrics: Metrics) -> Iterator[tuple[str, str]]:
    """Compares the evaluation's returns, of most probable actions, with those of training, of sampled actions."""
    evaluated, trained = (metrics["eval/return_mean"], metrics["eval/return_std"]), (metrics[MEAN], metrics[STD])
    variances = evaluated[1] ** 2 / metrics["eval/episodes"], trained[1] ** 2 / max(1, min(metrics[EPISODES], WINDOW))
    lost, gain = trained[0] - evaluated[0], trained[0] - metrics[RANDOM_MEAN]
    if lost > max(2 * math.sqrt(sum(variances)), MAX_LOST_GAIN * abs(gain)):
        yield SAMPLED, f"a return of {_spread(*evaluated)}, against {_spread(*trained)} in training"


def _spread(mean: float, std: float) -> str:
    form = return_format(mean, std)
    return f"{mean:{form}} ± {std:{form}}"
