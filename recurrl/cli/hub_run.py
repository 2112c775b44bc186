"""A run's policy as a folder for a model hub, written without a network.

Its README is a model card: text that people read, with a header that model hubs read, which follows
https://github.com/huggingface/hub-docs/blob/main/modelcard.md.
"""

import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf

from recurrl import checkpoint
from recurrl.agent import Agent
from recurrl.config.composed import plain
from recurrl.errors import ConfigError, require
from recurrl.evaluation import KEPT
from recurrl.export.export import FORMATS, export
from recurrl.returns import summarized, table_row
from recurrl.runs.open_run import OpenedRun, open_run
from recurrl.runs.saved_config import code_named
from recurrl.runtime.atomic import unfinished
from recurrl.runtime.run_directory import CONFIG_FILE
from recurrl.video.writing import files_of

_KIND = "reinforcement-learning"
_USE = """```python
import recurrl

agent = recurrl.load("FOLDER"{trust})  # this folder
env, state, over = agent.make_env(), agent.initial_state(), False
observation, _ = env.reset()
while not over:
    action, state = agent.act(observation, state)
    observation, reward, terminated, truncated, _ = env.step(action)
    over = terminated or truncated
```"""
_TRUST = "The configuration names packages of its author, which `trust_packages` imports: read them first."
_ONNX = "`policy.onnx` needs only onnxruntime; `policy.json` says what goes in and out."


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
        card = model_card(opened, summarized(returns), seed, files)
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


def model_card(opened: OpenedRun, statistics: Mapping[str, Any], evaluation_seed: int, files: Sequence[str]) -> str:
    """The text of a model card.

    Args:
        opened: the checkpoint with the policy.
        statistics: the statistics of an evaluation, see :func:`recurrl.returns.summarized`.
        evaluation_seed: the seed of the evaluation.
        files: the names of the files in the folder.
    """
    config, saved = opened.config, opened.saved
    env, cell, algorithm = config.env.id, config.cell.name, config.algorithm.name
    needs_trust = bool(code_named(opened.settings, saved.path))
    mean, spread, interval, *_ = table_row(statistics, "episodes")
    count = statistics["episodes"]
    metric = {"type": "mean_reward", "name": "mean_reward", "value": f"{mean} +/- {spread}", "verified": False}
    task, dataset = {"type": _KIND, "name": _KIND}, {"type": env, "name": env}
    header = {
        "library_name": "recurrl",
        "pipeline_tag": _KIND,
        "tags": [env, _KIND, "deep-reinforcement-learning", "recurrent", cell, algorithm],
        "model-index": [
            {"name": f"{algorithm}-{cell}", "results": [{"task": task, "dataset": dataset, "metrics": [metric]}]}
        ],
    }
    hides = f", without entries {', '.join(map(str, config.env.mask))} of the observation" if config.env.mask else ""
    facts = f"""| | |
|---|---|
| task | `{env}`{hides} |
| return | {mean} ± {spread} over {count} episode{"s" * (count != 1)}; 95% interval of the mean: {interval} |
| evaluated with | the most probable actions, seed {evaluation_seed}, which training did not use |
| trained for | {saved.frames:,} frames, seed {config.seed} |
| network | {cell}, {config.cell.hidden_size} features |"""
    evaluation = f"--device cpu --seed {evaluation_seed} --episodes {count}"
    evaluation += " --trust-packages" if needs_trust else ""
    paragraphs = [
        f"---\n{yaml.safe_dump(header, sort_keys=False, allow_unicode=True)}---",
        f"# {algorithm.upper()} with {cell} on {env}",
        "![An episode](replay.gif)" if "replay.gif" in files else "",
        f"A policy trained with recurrl {saved.version}.",
        facts,
        "## Use",
        _USE.format(trust=", trust_packages=True" if needs_trust else ""),
        _TRUST if needs_trust else "",
        f"Loading runs no code of this folder. The same evaluation: `recurrl-evaluate FOLDER {evaluation}`.",
        _ONNX if "policy.onnx" in files else "",
        "## Training",
        "Everything is in `config.yaml`, which `recurrl.train` takes as a mapping.",
    ]
    return "\n\n".join(filter(None, paragraphs)) + "\n"
