"""A run's policy as a folder for a model hub, written without a network."""

import shutil
from collections.abc import Collection
from functools import partial
from pathlib import Path
from statistics import fmean

from omegaconf import OmegaConf

from recurrl import checkpoint
from recurrl.agent import Agent
from recurrl.checkpoint.files import complete
from recurrl.config.composed import plain
from recurrl.errors import ConfigError, require
from recurrl.evaluation import KEPT
from recurrl.export.card import model_card
from recurrl.export.export import FORMATS, export
from recurrl.returns import summarized
from recurrl.runs.open_run import open_run
from recurrl.runs.saved_config import code_named
from recurrl.runtime.atomic import unfinished
from recurrl.runtime.run_directory import CONFIG_FILE
from recurrl.video.writing import files_of


def write_hub_folder(
    run: Path, folder: Path, which: str = "best", formats: Collection[str] | None = None, trust_packages: bool = False
) -> tuple[list[str], str | None]:
    """Writes a run's policy with its model card, evaluation, exports and video into a new folder; nothing if it fails.

    The folder is a run directory with one checkpoint, which holds only the policy. :func:`recurrl.load` and
    ``recurrl-evaluate`` open it like any other run, and trust the code that it names as little.

    Returns the folder's files without the checkpoint, and the reason why there is no video; None if there is one.

    Args:
        run: a run directory or a checkpoint.
        folder: does not exist, or is empty.
        which: the ``best`` checkpoint of a run directory, or the ``last``.
        formats: the exports' formats; default: all.
        trust_packages: import the packages that the run's configuration names.

    Raises:
        ConfigError: the folder is not empty, a package is missing, or an export is not exact.
    """
    # The folder is replaced by another, which the current one, ".", cannot be.
    is_free = folder.name != "" and (not folder.exists() or (folder.is_dir() and not any(folder.iterdir())))
    require(is_free, f"--hub-folder must be a new or an empty folder (got {folder}). Name another.")
    opened = open_run(run, which, "cpu", trust_packages)
    folder.parent.mkdir(parents=True, exist_ok=True)
    stage = unfinished(folder)
    stage.mkdir()
    try:
        policy, saved = opened.make_policy(), opened.saved
        opened.settings.resume = None  # a path of this machine
        OmegaConf.save(opened.settings, stage / CONFIG_FILE)
        parts, settings = {"policy": policy}, plain(opened.settings)
        path = checkpoint.save(stage, saved.frames, saved.metrics, parts, settings=settings)
        facts = opened.described(run.resolve().name)
        export(Agent(policy, opened.config.env), stage, facts, formats=formats or FORMATS)
        config, seed = opened.config, opened.config.seed + 1
        returns, without_video = _evaluated(stage, seed)
        complete(path, {checkpoint.RETURN_MEAN: fmean(returns)} | saved.metrics)
        files = sorted(each.name for each in stage.iterdir() if each.is_file())
        card = model_card(
            config,
            summarized(returns),
            frames=saved.frames,
            evaluation_seed=seed,
            version=saved.version,
            files=files,
            needs_trust=bool(code_named(opened.settings, run)),
        )
        (stage / "README.md").write_text(card, encoding="utf-8")
        stage.replace(folder)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return ["README.md", *files], without_video


def _evaluated(stage: Path, seed: int) -> tuple[list[float], str | None]:
    """Evaluates the folder's policy: its returns, and the reason why no video could be made; None if there is one."""
    # The run's packages were trusted when it was opened, and the folder names the same ones.
    play = partial(open_run(stage, checkpoint.LAST, "cpu", trust_packages=True).evaluate, seed=seed)
    try:
        return play(video=files_of(stage))[KEPT], None
    except ConfigError as error:
        # An error that is not about the video is raised again.
        return play()[KEPT], str(error)
