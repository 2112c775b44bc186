"""The set-up before the jobs of a sweep, and the tables after them.

The jobs may run in other processes or on other machines, so their results are read from their directories.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from hydra.core.utils import env_override
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from recurrl.reporting.results import OVERRIDES, Result, comparison, comparison_table, configured, differing, jobs_of
from recurrl.runs.overrides import job_overrides
from recurrl.runtime.atomic import atomic_write
from recurrl.runtime.run_directory import CONFIG_FILE, SUMMARY, read_text
from recurrl.runtime.run_summary import read_summary, write_summary
from recurrl.runtime.signals import stop_request
from recurrl.tracking.progress import SWITCH

FAILURE = ".hydra/failure"
"""Why a job failed or was rejected in the directory of a run, whose summary stays; written for the end of the sweep."""
SWEEP = ExitStack()
"""Closed when the command ends, however it ends; a sweep that has started is then reported."""


class BeforeSweep(Callback):
    """Gives joblib a number of processes that suits the machine, and has the sweep reported at its end."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Called by Hydra with the configuration of the sweep, before its first job."""
        if OmegaConf.select(config, "hydra.launcher.n_jobs") == -1:
            # By default joblib starts a process for each core, however many threads each has.
            from joblib import cpu_count  # type: ignore[import-untyped]

            config.hydra.launcher.n_jobs = max(1, cpu_count() // (config.num_threads or cpu_count()))
        # A signal ends the command like Ctrl-C: joblib then ends its processes, and the sweep is reported.
        SWEEP.enter_context(stop_request())
        SWEEP.callback(_report, Path(config.hydra.sweep.dir).absolute())
        # The progress lines of jobs in parallel processes would overwrite each other.
        SWEEP.enter_context(env_override({SWITCH: str(os.getpid())}))


@contextmanager
def sweep_job(run_dir: Path) -> Iterator[None]:
    """Runs a job: records its overrides when it begins, and its error if it is rejected before it writes a summary."""
    (run_dir / FAILURE).unlink(missing_ok=True)
    if not read_summary(run_dir).get("frames"):
        (run_dir / SUMMARY).unlink(missing_ok=True)  # its error is not this job's
    if not (run_dir / CONFIG_FILE).exists():  # those of a resumed run stay as they are until it is accepted
        (run_dir / OVERRIDES).parent.mkdir(exist_ok=True)
        with atomic_write(run_dir / OVERRIDES) as file:
            OmegaConf.save(OmegaConf.create(job_overrides()), file)
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        if (run_dir / CONFIG_FILE).exists():
            with suppress(OSError):  # on a full disk; the job's own error says more
                (run_dir / FAILURE).write_text(reason, encoding="utf-8")
        else:
            write_summary(run_dir, {"status": "failed", "frames": 0, "error": reason})
        raise


def _report(folder: Path) -> None:
    """Prints and writes the results of a sweep, and names the jobs that failed."""
    if not (jobs := jobs_of(folder)):
        return
    # A resumed run may have settings that no override of the sweep names, and others than an override names.
    listed = configured(jobs) if any("resume" in job.settings for job in jobs) else jobs
    try:
        with atomic_write(folder / "sweep.json") as file:
            file.write(comparison(listed, "jobs"))
        from recurrl.reporting.page import write_report  # plotly takes half a second

        page = write_report(configured(jobs), [folder])
    finally:  # on a full disk, too; and last, because standard output may be closed
        sys.stdout.write(f"\n{comparison_table(listed, 'job')}\n")
        sys.stdout.flush()
        _print_failures(jobs)
    sys.stderr.write(f"The table is also in {folder}/sweep.json, with figures in {page}.\n")


def _print_failures(jobs: Sequence[Result]) -> None:
    """Says how many jobs were completed, and why the others were not."""
    reasons = {job.name: read_text(path) for job in jobs if (path := job.directory / FAILURE).exists()}
    failed = [job for job in jobs if job.name in reasons or not job.has_ended_well]
    sys.stderr.write(f"{len(jobs) - len(failed)} of {len(jobs)} jobs completed\n")
    keys = differing(jobs)
    for job in failed:
        settings = " ".join(f"{key}={value}" for key, value in job.settings.items() if key in keys or not keys)
        status, reason = "failed" if job.name in reasons else job.status, reasons.get(job.name, job.error)
        sys.stderr.write(f"{status}: {job.name}: {settings or '(defaults)'}: {reason or 'see its log'}\n")
