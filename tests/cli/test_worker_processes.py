"""Runs whose environments are in other processes: signals from the terminal, and processes that are killed."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from disks import with_a_disk_of_its_own
from run_files import ended, metrics, summary

from recurrl.checkpoint import files

pytestmark = pytest.mark.slow
in_processes = pytest.mark.parametrize("collector", ["multi_sync", "multi_async"])
WAIT_S = 300
# Linux's PF_EXITING, see proc_pid_stat(5): past its own code; the last of its memory is freed.
_EXITING = 0x4

# Named semaphores are removed by a process that ends a moment after the run.
SHOW_SHARED_MEMORY = """
trap '' INT
(trap - INT; exec "$0" "$@"); code=$?
for i in 1 2 3 4 5 6 7 8 9 10; do [ -z "$(ls /dev/shm)" ] && exit $code; sleep 1; done
echo "left in shared memory: $(ls /dev/shm)"
exit $code
"""


class Run(NamedTuple):
    """A run in a process group of its own, as a terminal starts one."""

    process: subprocess.Popen[str]
    folder: Path

    def wait_until_it_learns(self):
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if (self.folder / "metrics.csv").exists() and len(metrics(self.folder)) > 2:
                return
            time.sleep(0.1)
        os.killpg(self.process.pid, signal.SIGKILL)
        raise AssertionError(f"The run does not learn: {self.process.communicate()}")

    def workers(self):
        """The processes that collect, in their order; without Python's own helper."""
        return [pid for pid in sorted(self.members()) if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]

    def members(self):
        """The processes in the test's folder, without those that have ended or are about to."""
        pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
        return [pid for pid in pids if _folder(pid) == self.folder.parent]

    def end(self, within_s=WAIT_S):
        """Its exit code and what it printed; nothing is left of it."""
        out, err = self.process.communicate(timeout=within_s)
        assert "left in shared memory" not in out
        assert not self.members()
        return self.process.returncode, err


def _folder(pid):
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ends = state == "Z" or int(others[5]) & _EXITING
        return None if ends else Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return None


@pytest.fixture
def start(tiny, tmp_path):
    """Starts a run; whatever is left of it is killed after the test."""
    runs = []

    def start(*overrides, by=(str(Path(sys.executable).parent / "recurrl-train"),)):
        overrides = (*tiny, "frames_per_batch=64", "total_frames=1_000_000_000", "hydra.run.dir=run", *overrides)
        own_memory = with_a_disk_of_its_own("/dev/shm", "256m")
        show = ["sh", "-c", SHOW_SHARED_MEMORY] if own_memory else []
        command = [*own_memory, *show, *by, *overrides]
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        runs.append(Run(subprocess.Popen(command, cwd=tmp_path, start_new_session=True, **output), tmp_path / "run"))
        return runs[-1]

    yield start
    for run in runs:
        for pid in run.members():
            os.kill(pid, signal.SIGKILL)


RANKS = (sys.executable, *["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "recurrl"])


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_named_ends_the_run_and_its_newest_checkpoint_resumes(victim, start):
    workers = ("collector=multi_sync", "collector.num_workers=4", "checkpoint.every_frames=64")
    run = start(*workers, by=RANKS)
    run.wait_until_it_learns()
    of_rank = [pid for pid in run.members() if f"\0RANK={victim}\0" in Path(f"/proc/{pid}/environ").read_text()]
    os.kill(min(of_rank), signal.SIGKILL)  # its workers have the same environment, and began later
    code, err = run.end(within_s=60)
    assert code == 1
    assert re.search(rf"rank +: {victim} .*\n +exitcode +: -9", err), err
    newest = files.checkpoints_in(run.folder / "checkpoints")[-1]
    assert newest in files.intact_in(newest.parent)
    last = files.frames_of(newest) + 128
    assert start(*workers, "resume=run", f"total_frames={last}", by=RANKS).end()[0] == 0
    assert metrics(run.folder)[-1]["frames"] == str(last)


@in_processes
def test_ctrl_c_reaches_all_processes_and_ends_the_run_after_the_iteration(collector, start):
    run = start(f"collector={collector}")
    run.wait_until_it_learns()
    assert len(run.workers()) >= 2
    os.killpg(run.process.pid, signal.SIGINT)
    code, err = run.end()
    assert code == 130, err
    assert "Traceback" not in err
    result = summary(run.folder)
    assert (result["status"], result["error"]) == ("interrupted", None)
    assert metrics(run.folder)[-1]["frames"] == str(result["frames"])
    assert (run.folder / result["checkpoint"]).exists()


@in_processes
def test_a_killed_worker_ends_the_run_with_an_error_message_and_leaves_nothing(collector, start):
    run = start(f"collector={collector}")
    run.wait_until_it_learns()
    os.kill(run.workers()[1], signal.SIGKILL)
    code, err = run.end(within_s=60)
    assert code == 1
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "Worker 1 of 2 (environments 2 to 3) was killed by SIGKILL after " in line
    assert "Traceback" not in err
    assert ended(run.folder) == ("failed",)
    assert line.removeprefix("error: ") in summary(run.folder)["error"]


def test_workers_end_when_the_main_process_is_killed(start):
    run = start("collector=multi_sync")
    run.wait_until_it_learns()
    _, parent, *_ = Path(f"/proc/{run.workers()[0]}/stat").read_text().rpartition(")")[2].split()
    os.kill(int(parent), signal.SIGKILL)
    run.end(within_s=60)
