"""Episodes with the policy of a run."""

import os
from collections.abc import Sequence
from pathlib import Path

from recurrl.build import set_process_state
from recurrl.cli.load_run import open_run
from recurrl.envs.watched import watched
from recurrl.errors import ConfigError, require
from recurrl.evaluation import KEPT, evaluate_many
from recurrl.runtime.resources import resource_errors_as_messages
from recurrl.runtime.run_directory import CONFIG_FILE, VIDEOS, run_directory_of
from recurrl.runtime.time_limit import time_limit
from recurrl.video.episode import Recorder
from recurrl.video.writing import files_of, write


@resource_errors_as_messages()
def evaluate_run(
    path: Path,
    episodes: int | None = None,
    seed: int | Sequence[int] | None = None,
    device: str | None = None,
    states: Sequence[str] = (KEPT,),
    trust_packages: bool = False,
    which: str = "last",
    deterministic: bool = True,
    overrides: Sequence[str] = (),
    video: Sequence[Path] = (),
) -> dict[str, list[float]]:
    """Returns of episodes of a run's policy in the environment it was trained in, for each of ``states``.

    Args:
        path: a checkpoint, or a run directory.
        episodes: number of episodes for each seed; default: as in the run's own evaluation.
        seed: of the environments, or several; default: the run's.
        device: where the policy runs; default: the run's.
        states: treatments of the recurrent states between steps, see :func:`recurrl.evaluation.evaluate`.
        trust_packages: import the packages that the run's configuration names.
        which: of a run directory: the ``last`` checkpoint, or the ``best`` by its evaluation.
        deterministic: take the most probable actions; False to sample them.
        overrides: ``env.key=value``, changes of the environment.
        video: files to write, as :func:`recurrl.video.writing.files_of` names them: the first episode of each seed,
            with its states as they are.

    Raises:
        ConfigError: the path is not a run, its configuration names untrusted packages, its environment or device is not
            available here or cannot be drawn, or its policy has no states.
    """
    opened = open_run(path, which, device, trust_packages, overrides)
    config = opened.config
    set_process_state(config)
    episodes = config.evaluation.episodes if episodes is None else episodes
    require(episodes >= 1, f"--episodes {episodes} is too small. Give at least 1.")
    given = config.seed if seed is None else seed
    all_seeds = [given] if isinstance(given, int) else given
    with time_limit(config.collector.timeout_s):
        policy = opened.make_policy()
        if set(states) != {KEPT} and not policy.state_keys:
            raise ConfigError(f"--memory concerns recurrent states, but the policy of {path} has none. Leave it out.")
        env = watched(config.env) if video else config.env
        recorders = [Recorder(policy, env.mask, f"{env.id}, seed {each}") for each in all_seeds] if video else []
        returns = {
            each: evaluate_many(
                env, policy, episodes, all_seeds, each, deterministic, recorders if each == KEPT else ()
            )
            for each in states
        }
    if video:
        write([each.episode() for each in recorders], video)
    return returns


def video_files(runs: Sequence[Path], path: Path | None) -> list[Path]:
    """The files of a video, by default in the folder ``video`` of the run.

    Args:
        runs: to evaluate; one.
        path: a file or a folder.

    Raises:
        ConfigError: there are several runs, the path does not fit, or a package is missing.
    """
    require(len(runs) == 1, f"--video shows one run, but {len(runs)} were given. Evaluate them one by one.")
    folder = run_directory_of(runs[0]) / VIDEOS
    is_run = path is not None and os.path.lexists(path / CONFIG_FILE)
    require(not is_run, f"--video {path} would write into a run. Give the run before --video, or a folder of your own.")
    return files_of(path or folder)
