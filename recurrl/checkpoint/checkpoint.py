"""A checkpoint: the parts of a run that it holds, its metadata, and restoring a run or a policy from it."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from torchrl.checkpoint import GlobalRNGState

from recurrl.checkpoint import files, ranks
from recurrl.config.keys import differences, flat
from recurrl.errors import ConfigError
from recurrl.learning.learner import Learner
from recurrl.policy import Policy
from recurrl.runtime.ranks import world
from recurrl.runtime.run_directory import CHECKPOINTS, CONFIG_FILE
from recurrl.runtime.seeds import seed_of_rank
from recurrl.tracking import Resumed

NOT_OF_EPISODES = (
    *("env.reward_scale", "env.normalize_observation", "env.normalize_reward"),
    *("collector.timeout_s", "collector.on_fault"),
)
"""Settings of environments and collectors that unfinished episodes do not depend on."""
SHAPING = ("env.", "cell.", "policy.", "algorithm.")
"""The groups of settings that determine the components and their shapes."""

logger = logging.getLogger(__name__)


class Stateful(Protocol):
    """A component of a checkpoint."""

    def state_dict(self) -> Any:
        """Tensors and plain values."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Restores them."""


def components(learner: Learner, **others: Stateful) -> dict[str, Stateful]:
    """The whole state of a run: the learner's parts, its buffer's if it has one, random numbers, and ``others``."""
    return {
        "policy": learner.policy,
        "optimizer": learner.optimizer,
        "algorithm": learner.algorithm,
        "reward_scaler": learner.reward_scaler,
        "learner": learner,
        "rng": GlobalRNGState(),
        **({"buffer": learner.buffer} if hasattr(learner.buffer, "state_dict") else {}),
        **others,
    }


class Checkpoint:
    """A checkpoint of a run. Its checksums are verified once, when it is opened.

    Args:
        path: of the checkpoint.

    Attributes:
        path: likewise.
        frames: frames seen when it was written.
        version: of recurrl, that wrote it.
        ranks: the number of ranks of the run that wrote it.
        settings: the configuration of the run that wrote it, as plain values.
        resumed: the tracking state that a resumed run continues from.
        metrics: the metrics of its iteration, without those of an evaluation.
        evaluation: the metrics of the evaluation after it, if one was due; None if the run ended before it, so that the
            iteration is yet to be logged.

    Raises:
        ConfigError: it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        values = files.metadata(path)
        frames, settings, ids = values.get("frames"), values.get("settings", {}), values.get("tracker_ids", {})
        metrics, version, ranks_saved = values.get("metrics", {}), values.get("version"), values.get("ranks", 1)
        of_their_types = isinstance(settings, dict) and _are(str, ids) and _are(float, metrics)
        of_their_types = of_their_types and isinstance(version, str | None) and type(ranks_saved) is int
        if type(frames) is not int or not 0 <= frames < 10**18 or not of_their_types:
            raise ConfigError(
                f"The checkpoint {path} was not written by a run: its metadata has unexpected types. Give another one."
            )
        self.frames: int = frames
        self.version: str | None = version
        self.ranks: int = ranks_saved
        self.settings: dict[str, Any] = settings
        self.resumed = Resumed(self.frames, ids)
        self.metrics: dict[str, float] = metrics
        self.evaluation = files.evaluation(path)

    def load(self, into: Mapping[str, Stateful], settings: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Restores what :func:`save` wrote.

        Environments whose settings have changed begin new episodes, and the log says so.

        Args:
            into: the :func:`components` of the run.
            settings: the run's whole configuration as plain values.

        Raises:
            ConfigError: the checkpoint does not fit the configuration.
            RunError: a worker failed.
        """
        changes = {
            key: change
            for key, change in differences(self.settings, settings).items()
            if key.startswith(("env.", "collector.")) and key not in NOT_OF_EPISODES
        }
        if changes:
            told = ", ".join(f"{key} is {now} and was {was}" for key, (was, now) in changes.items())
            logger.warning("Unfinished episodes are restarted: %s.", told)
            if flat(self.settings).get("collector.ahead"):
                logger.warning("The rows that workers had collected ahead are dropped.")
            into = {name: component for name, component in into.items() if name != ranks.EPISODES}
        if self.ranks == world().size == 1:
            files.load(self.path, into, self._shaping(settings))
            return
        seeds = [seed_of_rank(settings["seed"], self.frames, rank) for rank in range(world().size)]
        ranks.load(self.path, self.ranks, into, self._shaping(settings), seeds)

    def is_complete(self, total_frames: int, frames_per_batch: int) -> bool:
        """True if a run of ``total_frames`` has nothing left to do after it, not even its last evaluation."""
        return self.evaluation is not None and self.frames + frames_per_batch > total_frames

    @property
    def is_alone(self) -> bool:
        """True for a checkpoint outside its run directory, of whose configuration it holds the only copy."""
        return not os.path.lexists(self.path.parent.parent / CONFIG_FILE)

    def is_in(self, run_dir: Path) -> bool:
        """True if it is one of the run directory's checkpoints."""
        return self.path.resolve().parent == (run_dir / CHECKPOINTS).resolve()

    def load_policy(self, policy: Policy, settings: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Restores only the policy, including its running statistics.

        Args:
            policy: made as ``settings`` say.
            settings: the whole configuration as plain values.

        Raises:
            ConfigError: the checkpoint does not fit the policy.
        """
        files.load(self.path, {"policy": policy}, self._shaping(settings))

    def _shaping(self, settings: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """The changed settings that may keep a checkpoint from fitting."""
        changes = differences(self.settings, settings) if self.settings and settings else {}
        return {key: change for key, change in changes.items() if key.startswith(SHAPING)}


def restore(start: Checkpoint | None, parts: Mapping[str, Stateful], settings: Mapping[str, Any]) -> None:
    """Gives all ranks the state of rank 0 in a new run, or that of the checkpoint. Collective.

    Args:
        start: on rank 0, the checkpoint to resume from; None for a new run.
        parts: the :func:`components` of the run.
        settings: the whole configuration as plain values.

    Raises:
        ConfigError: the checkpoint does not fit the configuration.
    """
    if start is None:
        ranks.begin(parts)
    else:
        start.load(parts, settings)


def of_ranks(parts: Mapping[str, Stateful]) -> dict[str, Stateful]:
    """On rank 0, the component that holds the other ranks' states. Collective.

    Raises:
        RunError: the policies of the ranks are no longer the same.
    """
    states = ranks.own_states(parts) if world().size > 1 else []
    return {ranks.RANKS: files.Held(states)} if states else {}


def _are(kind: type, values: Any) -> bool:
    return isinstance(values, dict) and all(type(value) is kind for value in values.values())
