"""The rules of a configuration: what violates one is an error that says what to do, and what that advises is fine."""

import sys

import pytest
import torch
from my_package.elman_cell import ElmanConfig
from rejections import error_of

import recurrl
from recurrl.config.cell import MatrixMemoryConfig
from recurrl.config.collector import WorkersConfig

GRPO = ("experiment=cartpole_grpo",)
BURN_IN = {"state": "burn_in", "slice_len": 8, "minibatch_slices": 8}
CELLLESS, NOT_STORED = {**BURN_IN, "cell.name": "none"}, ("zero", "refresh", "burn_in")
ONE_FRAME = {"slice_len": 1, "minibatch_slices": 1}
ONE_FRAME_A_BATCH = {**ONE_FRAME, "env.num_envs": 1, "frames_per_batch": 1}
ONE_STEP = {"epochs": 1, "minibatch_slices": 32}
NORMALIZE = "algorithm.normalize_advantage"
HUGE = {"frames_per_batch": 10**12, "total_frames": 10**12, "env.num_envs": 1, "slice_len": 7}
ELMAN = ElmanConfig(name="my_package.elman_cell:Elman", hidden_size=8, num_layers=1)
MLSTM = MatrixMemoryConfig(name="mlstm", hidden_size=8, num_layers=1, heads=2, key_size=4, value_size=4)


def workers(number):
    return WorkersConfig(name="multi_sync", num_workers=number, ahead=0, timeout_s=None, on_env_error="raise")


def shown(value):
    """Changes as they would be typed; nothing for what else a test has as a parameter."""
    return " ".join(f"{key}={new}" for key, new in value.items()) if isinstance(value, dict) else ""


ERRORS = [
    # Batches
    ({"slice_len": 64}, "slice_len must be a divisor of the 32 steps of a row, frames_per_batch / env.num_envs"),
    ({"slice_len": 5}, "Choose one of: 1, 2, 4, 8, 16, 32."),
    (HUGE, "Choose one of: 1, 2, 4, 5, 8, 10,"),
    ({"minibatch_slices": 5}, "minibatch_slices must be a divisor of the 32 slices of an iteration"),
    ({"frames_per_batch": 1000}, "must be a multiple of env.num_envs=32 (got 1000). Set frames_per_batch=992, for"),
    ({"frames_per_batch": 8}, "Set frames_per_batch=32, for example."),
    ({"total_frames": 1023}, "total_frames must be at least one iteration of frames_per_batch=1024 (got 1023)."),
    # The learning rate
    ({**ONE_STEP, "lr_schedule": "adaptive"}, "lr_schedule must be linear with one gradient step per iteration"),
    # Normalisation
    ({**ONE_FRAME, NORMALIZE: "minibatch"}, f"{NORMALIZE} must be none where a minibatch has one frame"),
    ({**ONE_FRAME_A_BATCH, NORMALIZE: "batch"}, f"{NORMALIZE} must be none where a batch has one frame"),
    # States
    *(({**CELLLESS, "state": it}, f"state must be stored with cell=none (got {it}).") for it in NOT_STORED),
    *(({**BURN_IN, "slice_len": n}, "slice_len must be at least 2 and less than the 32 steps of") for n in (1, 32)),
    ({"state": "refresh"}, "slice_len must be at least 1 and less than the 32 steps of a row with state=refresh (got"),
    # Devices
    *(
        ({"device": device}, f"such as cuda:0 (got {device}). Choose device=cpu, or install a CUDA build of torch")
        for device in ("cuda", "nonsense", "0", "cpu:x", "", "meta", "mps")
    ),
    # The recurrent layer
    ({"backend.name": "triton", "cell.hidden_size": 2048}, "hidden_size=2048 is not supported by backend=triton"),
    ({"precision": "tf32"}, "precision=tf32 needs a GPU"),
    ({"precision": "tf32x3"}, "precision=tf32x3 is not supported by backend=auto"),
    (
        {"cell.name": "none", "algorithm.critic": "recurrent"},
        "cell must be a recurrent one with algorithm.critic=recurrent (got none). Choose a cell, or algorithm.critic=",
    ),
    # Compiling
    ({"compile": "loss", "backend.name": "pad"}, "backend must be one of auto, native, scan, triton with compile=loss"),
    ({"compile": "loss", "cell": ELMAN, "recompute": "full"}, "recompute must be none with compile=loss"),
    ({"compile": "cudagraphs"}, "device must be a CUDA device with compile=cudagraphs (got cpu). Choose a GPU, or"),
    # Workers
    ({"collector": workers(5)}, "must be a multiple of collector.num_workers=5 (got 32). Set env.num_envs=30, for"),
]


@pytest.mark.parametrize(("changes", "message"), ERRORS, ids=shown)
def test_what_violates_a_rule_is_an_error_with_the_reason(rejection, changes, message, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert message in rejection(changes)


ADVISED = [
    *({}, {"slice_len": 1}, {"slice_len": 4}, {"minibatch_slices": 1}, {"minibatch_slices": 32}),
    {"frames_per_batch": 992, "slice_len": 31},
    {"total_frames": 1024},
    ONE_STEP,
    *({**ONE_STEP, "lr_schedule": "adaptive", **more} for more in ({"epochs": 2}, {"minibatch_slices": 16})),
    *({"env.normalize_reward": normalized, "env.reward_scale": 0.5} for normalized in (False, True)),
    {"slice_len": 2, "minibatch_slices": 1, NORMALIZE: "minibatch"},
    {"slice_len": 1, "minibatch_slices": 2, NORMALIZE: "minibatch"},
    {**ONE_FRAME, NORMALIZE: "batch"},
    ONE_FRAME_A_BATCH,
    *({"state": "zero"}, BURN_IN, {**BURN_IN, "state": "refresh"}, {"precision": "fast"}, {"recompute": "full"}),
    {"recompute": "full", "backend.name": "reference"},
    {"compile": "loss", "cell": MLSTM, "backend.name": "native"},
    {"collector": workers(4)},
]


@pytest.mark.parametrize("changes", ADVISED, ids=shown)
def test_what_such_an_error_advises_is_fine(checked, changes):
    checked(changes)


# Devices


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("two_gpus")
def test_a_cuda_device_must_be_there(checked, rejection):
    for cuda in ("cuda", "cuda:0", "cuda:1"):
        assert checked({"device": cuda}).device == cuda
    error = rejection({"device": "cuda:2"})
    assert error.startswith("device must be auto, cpu or one of the 2 CUDA devices that torch")


@pytest.mark.usefixtures("two_gpus")
def test_cuda_graphs_need_a_rollout_in_this_process(checked, rejection):
    changes = {"device": "cuda", "compile": "cudagraphs"}
    checked(changes)
    error = rejection({**changes, "collector": workers(4)})
    assert error.startswith("collector must be single with compile=cudagraphs (got multi_sync). Choose collector=singl")


def test_compiling_needs_a_compiler(rejection, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler is not on PATH" in rejection({"compile": "loss"})


# Groups


AT_THE_COMMAND_LINE = [
    ((*GRPO, "algorithm.group_size=3", "env.num_envs=16"), "(got 3). Choose one of: 2, 4, 8, 16."),
    ((*GRPO, "algorithm.group_size=8", "env.num_envs=1"), "(got 8). Set a larger env.num_envs."),
    (("algorithm=grpo",), "Set frames_per_batch=8000, and a slice_len that divides 500; or, if shorter episodes"),
    (("algorithm=grpo", "collector=multi_sync"), "collector must be single with algorithm=grpo, because"),
]


@pytest.mark.parametrize(("overrides", "message"), AT_THE_COMMAND_LINE)
def test_rules_are_checked_at_the_command_line_too(rejected, overrides, message):
    assert message in rejected(*overrides)


def test_groups_are_an_error_where_environments_share_their_random_numbers(recurrl_train, tmp_path):
    sizes = ("env.num_envs=8", "algorithm.group_size=4", "frames_per_batch=400", "slice_len=25", "minibatch_slices=4")
    error = recurrl_train("algorithm=grpo", "env=t_maze", *sizes, cwd=tmp_path).error
    assert "must be able to start the episodes of a group from the same state (got algorithm.group_size=4)" in error


# Packages


NEEDED_BY = {"tensorboard": "logger", "ray": "collector", "optuna": "hydra/sweeper"}


@pytest.mark.parametrize("package", NEEDED_BY)
def test_a_choice_without_its_package_is_an_error_with_what_to_install(rejected, monkeypatch, package):
    parts = ("tracking.tensor", "collector.ray", "cli.search")
    for name in [name for name in sys.modules if name.partition(".")[0] == package or any(of in name for of in parts)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, package, None)  # as Python marks what cannot be imported
    choice = f"{NEEDED_BY[package]}={package}"
    assert rejected(*(["-m", "hparams_search=ppo"] if package == "optuna" else [choice])) == (
        f"{choice} needs the module {package}, which is not installed. Install it, for example with: pip "
        f"install 'recurrl[{package}]'."
    )


# Ranks

DIVIDED = {"env.num_envs": 24, "frames_per_batch": 768, "minibatch_slices": 6}


@pytest.fixture
def three_ranks(monkeypatch):
    for name, number in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 3, "LOCAL_WORLD_SIZE": 3, "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(number))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")


NOT_DIVIDED = [
    ({}, "env.num_envs must be a multiple of 3 ranks (got 32). Set env.num_envs=33, for example."),
    ({"env.num_envs": 24, "frames_per_batch": 768}, "minibatch_slices must be a multiple of 3 ranks (got 8)."),
    ({**DIVIDED, "collector": workers(4)}, "collector.num_workers must be a multiple of 3 ranks (got 4)."),
    ({**DIVIDED, "pretrain.folder": "episodes"}, "pretrain.folder must be null with several ranks (got episodes)."),
]


@pytest.mark.usefixtures("three_ranks")
@pytest.mark.parametrize(("changes", "message"), NOT_DIVIDED, ids=shown)
def test_what_ranks_share_must_divide_among_them(rejection, changes, message):
    assert message in rejection(changes)


@pytest.mark.usefixtures("three_ranks", "two_gpus")
def test_each_rank_has_a_gpu_unless_all_share_a_numbered_one(rejection, checked):
    assert rejection({**DIVIDED, "device": "cuda"}).startswith(
        "device=cuda must be used with at least 3 GPUs on this machine, one per rank (got 2). Start torchrun"
    )
    checked({**DIVIDED, "device": "cuda:0"})


@pytest.mark.usefixtures("three_ranks")
def test_several_ranks_are_of_one_run_by_the_command(recurrl_train, tmp_path):
    assert "Start torchrun once per run" in recurrl_train("-m", "seed=0,1", cwd=tmp_path).err
    assert list(tmp_path.iterdir()) == []
    assert "must run in one process (got 3 from torchrun)" in error_of(recurrl.train, [])
