"""A run's policy as a folder for a model hub, written without a network."""

import shutil
from collections.abc import Collection
from pathlib import Path
from statistics import fmean

from omegaconf import OmegaConf

from recurrl import checkpoint
from recurrl.agent import Agent
from recurrl.config.composed import plain
from recurrl.errors import ConfigError, require
from recurrl.evaluation import KEPT
from recurrl.export.card import model_card
from recurrl.export.export import FORMATS, export
from recurrl.returns import summarized
from recurrl.runs.open_run import OpenedRun, open_run
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
        facts, seed = opened.described(run.resolve().name), opened.config.seed + 1
        export(Agent(policy, opened.config.env), stage, facts, formats=formats or FORMATS)
        returns, without_video = _evaluate(opened, stage, seed)
        metrics = {checkpoint.RETURN_MEAN: fmean(returns)} | saved.metrics
        checkpoint.save(stage, saved.frames, metrics, parts, settings=settings, is_complete=True)
        files = sorted(each.name for each in stage.iterdir() if each.is_file())
        card = model_card(
            opened.config,
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


def _evaluate(opened: OpenedRun, folder: Path, seed: int) -> tuple[list[float], str | None]:
    """The returns of the run's policy, and the reason why the folder has no video; None if it has one."""
    try:
        return opened.evaluate(seed=seed, video=files_of(folder))[KEPT], None
    except ConfigError as error:
        # An error that is not about the video is raised again.
        return opened.evaluate(seed=seed)[KEPT], str(error)
