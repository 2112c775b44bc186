"""The results of a run: ``summary.json``, for scripts."""

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from recurrl.errors import ConfigError
from recurrl.runtime.atomic import atomic_write
from recurrl.runtime.run_directory import SUMMARY, read_text

EVALUATED = (
    *("return_mean", "return_std", "episodes", "return_mean_zeroed_state", "return_mean_shuffled_state"),
    *("return_mean_random", "return_std_random"),
)
"""The metrics of an evaluation that are in the summary, with the prefix ``eval_``."""
_TOTALS = ("best_eval_return_mean", "backend", "pretrain_log_likelihood")  # from which a resumed run continues
_KINDS: dict[str, tuple[type, str]] = {
    **dict.fromkeys(("device", "cell", "status", "error", "backend", "checkpoint"), (str, "text")),
    "warnings": (dict, "a mapping"),
}
"""The types of values that are not numbers, and their names in errors."""


@dataclass
class RunSummary:
    """A run's summary, updated as the run proceeds, so that it is correct whenever the run ends.

    Attributes:
        started: the start of the process or job, by ``time.monotonic``; not part of the summary.
        seed: the run's seed.
        device: the policy's device.
        cell: the recurrent cell.
        status: ``completed``, ``stopped`` by a callback, ``interrupted`` or ``failed``.
        error: the error of a failed run.
        frames: environment steps summed over environments, including those before a resume.
        frames_here: frames since this process started, over all ranks; not part of the summary.
        has_begun: true once configuration, policy and checkpoint are accepted; not part of the summary.
        resume_command: the command that resumes the run, for messages; not part of the summary.
        startup_time_s: time before the first iteration.
        collect_time_s: time spent collecting; with ``learn_time_s`` it adds up to ``train_time_s``.
        learn_time_s: time spent learning, without compilation.
        compile_time_s: time spent compiling the loss; None if it is not compiled.
        pretrain_log_likelihood: mean log-likelihood of recorded actions in pretraining's last epoch, in nats per step.
        train_return_mean: mean return of the last 100 episodes.
        evaluation: the metrics of the last evaluation.
        best_eval_return_mean: the best of all evaluations, including those before a resume.
        restarts: the number of restarts of environments after errors.
        backend: the recurrent backend that ran.
        checkpoint: the last checkpoint written, relative to the run directory.
        warnings: reasons to think that the run does not learn, by title.
    """

    started: float
    seed: int | None = None
    device: str | None = None
    cell: str | None = None
    status: str = "failed"
    error: str | None = None
    frames: int = 0
    frames_here: int = 0
    has_begun: bool = False
    resume_command: str = ""
    startup_time_s: float | None = None
    collect_time_s: float = 0.0
    learn_time_s: float = 0.0
    compile_time_s: float | None = None
    pretrain_log_likelihood: float | None = None
    train_return_mean: float | None = None
    evaluation: dict[str, float] = field(default_factory=dict)
    best_eval_return_mean: float | None = None
    restarts: int = 0
    backend: str | None = None
    checkpoint: str | None = None
    warnings: dict[str, str] = field(default_factory=dict)
    _seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timing(self, phase: str) -> Iterator[None]:
        """Measures the time that a block takes, as the iteration's time for ``collect`` or ``learn``."""
        began = time.perf_counter()
        yield
        self._seconds[phase] = time.perf_counter() - began

    def add_iteration(self, frames: int, compile_time_s: float | None) -> dict[str, float]:
        """Counts the frames and times of an iteration, and returns its times and speed, for the log.

        Args:
            frames: the iteration's frames.
            compile_time_s: the run's compile time so far, which does not count as learning; None before compilation.
        """
        if compile_time_s is not None and self.compile_time_s is None:
            self.compile_time_s = compile_time_s
            self._seconds["learn"] -= compile_time_s
        self.frames += frames
        self.frames_here += frames
        collect_s, learn_s = self._seconds["collect"], self._seconds["learn"]
        self.collect_time_s += collect_s
        self.learn_time_s += learn_s
        speed = frames / (collect_s + learn_s)
        return {"time/collect_s": collect_s, "time/learn_s": learn_s, "time/frames_per_s": speed}

    def update(self, metrics: Mapping[str, float]) -> None:
        """Updates the summary with the returns and restarts among an iteration's metrics."""
        self.train_return_mean = metrics["train/return_mean"]
        self.restarts = int(metrics.get("collect/restarts", 0))
        if "eval/return_mean" in metrics:
            # The mean may be that of a user's callback, which need not give the other metrics.
            known = {name: metrics[f"eval/{name}"] for name in EVALUATED if f"eval/{name}" in metrics}
            self.evaluation = {"return_std": math.nan, **known, "episodes": int(metrics.get("eval/episodes", 0))}
            mean, best = metrics["eval/return_mean"], self.best_eval_return_mean
            self.best_eval_return_mean = mean if best is None else max(best, mean)

    def state_dict(self) -> dict[str, Any]:
        """The totals that a resumed run continues from, for checkpoints."""
        return {name: getattr(self, name) for name in _TOTALS}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the totals."""
        for name in _TOTALS:
            setattr(self, name, state.get(name))

    def values(self) -> dict[str, object]:
        """The content of ``summary.json`` as of now."""
        fields = asdict(self)
        for name in ("started", "frames_here", "has_begun", "resume_command", "evaluation", "_seconds"):
            del fields[name]
        fields |= {f"eval_{name}": self.evaluation.get(name) for name in EVALUATED}
        train_time = self.collect_time_s + self.learn_time_s
        return {
            **fields,
            "wall_time_s": time.monotonic() - self.started,
            "train_time_s": train_time,
            "frames_per_s": self.frames_here / train_time if train_time else None,
        }


def write_summary(run_dir: Path, summary: Mapping[str, Any]) -> None:
    """Writes the summary of a run, replacing an earlier one atomically.

    NaN and infinity, which JSON lacks, become null.

    Raises:
        TypeError: a value cannot be represented in JSON, such as a tensor. An earlier summary stays.
    """
    finite = json.loads(json.dumps(summary), parse_constant=lambda _: None)
    with atomic_write(run_dir / SUMMARY) as file:
        file.write(json.dumps(finite, indent=2, ensure_ascii=False) + "\n")


def read_summary(run_dir: Path) -> dict[str, Any]:
    """The content of ``summary.json``; empty for a run that is still running, or was killed.

    Raises:
        ConfigError: no run wrote the file.
    """
    path = run_dir / SUMMARY
    try:
        summary: Any = json.loads(read_text(path)) if path.is_file() else {}
        if not isinstance(summary, dict):
            raise ValueError("it holds no mapping")
        for key in RunSummary(0.0).values():
            kind, name = _KINDS.get(key, (int | float, "a number"))
            if (value := summary.get(key)) is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                raise ValueError(f"{key} must be {name} (got {value!r})")
        json.dumps(summary, allow_nan=False)  # rejects NaN and infinity, which runs do not write
        if not all(isinstance(text, str) for text in (summary.get("warnings") or {}).values()):
            raise ValueError("warnings must hold texts")
        return summary
    except ValueError as error:
        raise ConfigError(f"{path} was not written by a run: {error}. Delete it.") from error
