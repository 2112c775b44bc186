"""The checkpoints of a run: writing, keeping, finding and restoring them."""

import logging
import shutil
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from recurrl import __version__
from recurrl.checkpoint import files, rank_states
from recurrl.config.keys import described, differences, flat
from recurrl.errors import ConfigError, require
from recurrl.policy import Policy
from recurrl.runtime.metrics import floats
from recurrl.runtime.ranks import world
from recurrl.runtime.run_directory import CHECKPOINTS, REPLACED, holder_of, run_directory_of
from recurrl.runtime.seeds import seed_of_rank
from recurrl.runtime.serialization import Stateful
from recurrl.tracking import Resumed

KEEPS_EPISODES = (
    *("env.reward_scale", "env.normalize_observation", "env.normalize_reward"),
    *("collector.timeout_s", "collector.on_env_error"),
    *("collector.address", "collector.cpus_per_worker", "collector.gpus_per_worker"),
)
"""Settings of environments and collectors that may change while unfinished episodes continue."""
STRUCTURAL_GROUPS = ("env.", "encoder.", "cell.", "policy.", "algorithm.", "buffer.")
"""The groups of settings that determine the components and their shapes."""
AUTO = "auto"
BEST, LAST = "best", "last"
RETURN_MEAN = "eval/return_mean"
"""The metric that decides which checkpoint is the best."""

logger = logging.getLogger(__name__)


def save(
    run_dir: Path,
    frames: int,
    metrics: Mapping[str, float],
    parts: Mapping[str, Stateful],
    tracker_ids: Mapping[str, str] = MappingProxyType({}),
    settings: Mapping[str, Any] = MappingProxyType({}),
    is_complete: bool = False,
) -> Path:
    """Writes a checkpoint on rank 0, and returns its path. Collective.

    :func:`recurrl.checkpoint.files.complete` completes it later, if it is not.

    Args:
        run_dir: the run's directory.
        frames: frames seen so far.
        metrics: the last iteration's metrics; before it is complete, without those of its evaluation.
        parts: the parts of the run that have a state, by name.
        tracker_ids: the run's id in each tracker, by the tracker's name.
        settings: the run's whole configuration as plain values.
        is_complete: true if the iteration has been evaluated, if that was due, and logged.

    Raises:
        OSError: the disk is full, or the folder is not writable. Earlier checkpoints stay intact.
        RunError: the policies of the ranks are no longer the same.
    """
    others = rank_states.gathered_states(parts)
    path = files.path_in(run_dir / CHECKPOINTS, frames)
    if world().rank == 0:
        states = {name: component.state_dict() for name, component in parts.items()} | others
        values = {"version": __version__, "frames": frames, "ranks": world().size, "metrics": floats(metrics)}
        values |= {"is_complete": is_complete, "tracker_ids": dict(tracker_ids), "settings": dict(settings)}
        files.write(path, states, values)
    return path


class Checkpoint:
    """A checkpoint of a run. Its checksums are verified once, when it is opened.

    Args:
        path: the checkpoint's directory.

    Attributes:
        path: the checkpoint's directory.
        frames: frames seen when it was written.
        version: the version of recurrl that wrote it.
        ranks: the number of ranks of the run that wrote it.
        settings: the configuration of the run that wrote it, as plain values.
        checksums: the SHA-256 of its states' files.
        resumed: the tracking state that a resumed run continues from.
        metrics: the metrics of its iteration; before it is complete, without those of its evaluation.
        is_complete: false if the run ended before the iteration was evaluated and logged.

    Raises:
        ConfigError: it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        values = files.manifest(path)
        self.version: str = values["version"]
        self.frames: int = values["frames"]
        self.ranks: int = values["ranks"]
        self.metrics: dict[str, float] = values["metrics"]
        self.is_complete: bool = values["is_complete"]
        self.settings: dict[str, Any] = values["settings"]
        self.checksums: dict[str, str] = values["checksums"]
        self.resumed = Resumed(self.frames, values["tracker_ids"])
        if self.version != __version__:
            logger.warning("%s was written by recurrl %s, and this is recurrl %s.", path, self.version, __version__)

    def load(self, into: Mapping[str, Stateful], settings: Mapping[str, Any]) -> None:
        """Restores what :func:`save` wrote, on rank 0; the other ranks call :func:`rank_states.broadcast_states`.

        Environments whose settings have changed, or whose episodes were not saved, begin new ones; the log says so.

        Args:
            into: the parts of the run that have a state, by name.
            settings: the run's whole configuration as plain values.

        Raises:
            ConfigError: the checkpoint does not fit the configuration.
            RunError: a worker failed.
        """
        ahead = flat(self.settings).get("collector.ahead")  # rows, whose length frames_per_batch determines
        restarting = ("env.", "collector.", *(["frames_per_batch"] if ahead else []))
        changes = {
            key: change
            for key, change in differences(self.settings, settings).items()
            if key.startswith(restarting) and key not in KEEPS_EPISODES
        }
        episodes = files.state(self.path, rank_states.EPISODES) if rank_states.EPISODES in into else {}
        continue_here = not changes and self.ranks == world().size
        reason = episodes.get("unsavable_reason") if continue_here else described(changes)
        if reason:
            logger.warning("Unfinished episodes are restarted: %s.", reason)
        if changes:
            if ahead:
                logger.warning("The rows that workers had collected ahead are dropped.")
            into = {name: component for name, component in into.items() if name != rank_states.EPISODES}
        if not continue_here and episodes.get("curriculum"):
            logger.warning("The simulator's own state, such as its curriculum, starts over.")
        self._load_on_ranks(into, settings)

    def _load_on_ranks(self, components: Mapping[str, Stateful], settings: Mapping[str, Any]) -> None:
        """Restores components, on rank 0 and, by :func:`rank_states.broadcast_states`, on any other ranks.

        With the same number of ranks each continues with its own state. With another number, random numbers and
        episodes are new and a replay buffer starts empty.
        """
        size, changes = world().size, self._structural_changes(settings)
        if self.ranks == size:
            files.load(self.path, components, changes)
            if size > 1:
                others = files.state(self.path, rank_states.RANKS)
                wanted = [{name: state for name, state in each.items() if name in components} for each in others]
                rank_states.broadcast_states(components, [{}, *wanted])
            return
        logger.warning(
            "%s was written by %d ranks, and there are %d now: random numbers and episodes are new%s.",
            *(self.path, self.ranks, size, ", and the replay buffer starts empty" if "buffer" in components else ""),
        )
        files.load(self.path, {name: each for name, each in components.items() if name not in rank_states.OWN}, changes)
        scaler = files.state(self.path, rank_states.SCALER)  # all ranks share the scale
        seeds = [seed_of_rank(settings["seed"], self.frames, rank) for rank in range(size)]
        rank_states.broadcast_states(components, [{rank_states.SCALER: scaler}] * size, seeds)

    def load_policy(self, policy: Policy, settings: Mapping[str, Any]) -> None:
        """Restores only the policy, including its running statistics.

        Args:
            policy: the policy that ``settings`` describe.
            settings: the whole configuration as plain values.

        Raises:
            ConfigError: the checkpoint does not fit the policy.
        """
        files.load(self.path, {"policy": policy}, self._structural_changes(settings))

    @property
    def is_alone(self) -> bool:
        """True for a checkpoint outside a run directory, which holds the only copy of the run's configuration."""
        return holder_of(self.path) is None

    def is_in(self, run_dir: Path) -> bool:
        """True if the checkpoint is in the run directory."""
        return self.path.resolve().parent == (run_dir / CHECKPOINTS).resolve()

    def copied_to(self, run_dir: Path) -> "Checkpoint":
        """Copies the checkpoint into ``run_dir``, for another run that continues from it with new tracker ids."""
        path = files.path_in(run_dir / CHECKPOINTS, self.frames)
        files.copy(self.path, path, {"tracker_ids": {}})
        return Checkpoint(path)

    def replace_later_ones(self) -> None:
        """Moves the run's later checkpoints to the folder ``replaced``, because the run continues from this one."""
        later = [path for path in files.checkpoints_in(self.path.parent) if files.frames_of(path) > self.frames]
        if later:
            folder = self.path.absolute().parent.parent / f"{REPLACED}/{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
            folder.mkdir(parents=True)
            for path in later:
                shutil.move(path, folder)  # checkpoints/ may be a link to another disk
            logger.warning(
                "The run continues at %d frames: later rows of metrics.csv are replaced, and the later checkpoints are "
                "now in %s.",
                *(self.frames, folder),
            )

    def _structural_changes(self, settings: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """The changed settings that may make the checkpoint incompatible."""
        changes = differences(self.settings, settings).items()
        return {key: change for key, change in changes if key.startswith(STRUCTURAL_GROUPS)}


def prune(run_dir: Path, keep_last: int | None) -> None:
    """Keeps the last ``keep_last`` intact checkpoints (None: all) and the best evaluated one; removes older ones."""
    checkpoints = files.checkpoints_in(run_dir / CHECKPOINTS)
    if keep_last is None or len(checkpoints) <= keep_last:
        return
    intact = files.intact_in(run_dir / CHECKPOINTS)
    best, last = _best(intact), list(intact)[-keep_last:]
    for path in checkpoints:
        if path != best and last and path < last[0]:
            files.remove(path)


def find_to_resume(resume: object, run_dir: Path) -> Checkpoint | None:
    """The checkpoint to resume from: for ``auto`` the newest in the run's own directory, or None without one.

    Args:
        resume: ``auto``, a run directory or a checkpoint.
        run_dir: the directory of the resuming run.

    Raises:
        ConfigError: ``resume`` is not the path of a run, or the run has no checkpoint, or one that is damaged or has a
            policy alone.
    """
    path = _newest(run_dir) if resume == AUTO else find(Path(str(resume)))
    if path is None:
        return None
    start = Checkpoint(path)
    require(
        set(start.checksums) != {"state-policy.pt"},
        f"{path} holds a policy alone, as a folder for a model hub does, which cannot be resumed. Start a new run with "
        f"its weights: init_from={path}.",
    )
    return start


def find(path: Path, which: str = LAST) -> Path:
    """The checkpoint that a path names: the path itself, or one in a run directory.

    Args:
        path: a checkpoint or a run directory.
        which: the ``last`` checkpoint of a run directory, or the ``best`` by the return of its evaluation.

    Raises:
        ConfigError: the path is neither, or the run has written no such checkpoint, or one that may be the best is
            damaged.
    """
    require(which in (BEST, LAST), f"which must be {BEST} or {LAST} (got {which}).")
    if files.is_checkpoint(path):
        return path
    run_dir = run_directory_of(path)
    newest = _newest(run_dir)
    if newest is None:
        raise ConfigError(
            f"{run_dir} holds no checkpoint: its run ended before it wrote one. Choose another run, or start this one "
            f"over with resume=auto hydra.run.dir={run_dir}."
        )
    if which == LAST:
        return newest
    best = _best({path: files.manifest(path) for path in files.checkpoints_in(run_dir / CHECKPOINTS)})
    if best is None:
        raise ConfigError(
            f"{run_dir} holds no evaluated checkpoint: its run has not reached an evaluation, or no episode of "
            f"training had ended (evaluation.episodes=0). Use which={LAST} (--which last) for its newest checkpoint, "
            "or resume it first."
        )
    return best


def _newest(run_dir: Path) -> Path | None:
    return next(reversed(files.checkpoints_in(run_dir / CHECKPOINTS)), None)


def _best(intact: Mapping[Path, Mapping[str, Any]]) -> Path | None:
    """The checkpoint with the best evaluation, of those with these manifests; None if none was evaluated."""
    metrics = {path: values["metrics"] for path, values in intact.items()}
    returns = {path: each[RETURN_MEAN] for path, each in metrics.items() if RETURN_MEAN in each}
    return max(returns, key=lambda path: (returns[path], path), default=None)
