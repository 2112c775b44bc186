"""The rules between the values of a configuration: what is fine, and what is refused, with what to do instead."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from recurrl import checkpoint, envs
from recurrl.recurrent.backends import backend_names
from recurrl.validation import check

RANGES = {
    "a finite number above 0": (
        (
            "lr",
            "env.reward_scale",
            "policy.initial_std",
            "algorithm.clip_epsilon",
            "algorithm.max_grad_norm",
            "algorithm.target_kl",
            "algorithm.clip_value",
            "algorithm.clip_epsilon_high",
            "algorithm.kl_coeff",
            "desired_kl",
        ),
        (0.0, -1.0, math.nan, math.inf),
    ),
    "a number from 0 to 1": (
        (
            "algorithm.gamma",
            "algorithm.lmbda",
            "algorithm.clip_final_fraction",
            "algorithm.entropy_final_fraction",
            "lr_final_fraction",
        ),
        (-0.1, 1.1, math.nan),
    ),
    "a finite number, 0 or above": (
        ("algorithm.entropy_coeff", "algorithm.critic_coeff"),
        (-0.1, math.nan, math.inf),
    ),
}
"""Of each range, as a refusal names it: the keys that have it, and values outside it."""


def changed(changes: dict[str, object]) -> str:
    return " ".join(f"{key}={value}" for key, value in changes.items())


# What is fine


def test_the_defaults_are_fine(compose):
    config = compose()
    check(config)
    envs.check(config.env)
    checkpoint.check_resume(config, checkpoint.to_resume(config.resume, Path()))


def test_a_preset_precision_is_fine_on_a_cpu(checked):
    assert checked({"precision.name": "fast"}).precision.name == "fast"


def test_a_feed_forward_policy_has_no_backend_to_refuse(checked):
    assert checked({"cell.name": "none", "backend.name": "triton"}).cell.name == "none"


def test_full_recomputation_is_fine_where_the_backend_is_free(checked):
    checked({"recompute.name": "full"})
    checked({"recompute.name": "full", "backend.name": "scan"})


@pytest.mark.parametrize("cuda", ["cuda", "cuda:0", "cuda:1"])
def test_a_cuda_device_that_is_there_is_fine(checked, monkeypatch, cuda):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert checked({"device": cuda}).device == cuda


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm.gamma": 0.0},
        {"algorithm.gamma": 1.0},
        {"lr_final_fraction": 0.0},
        {"algorithm.entropy_coeff": 0.0},
        {"algorithm.max_grad_norm": None},
        {"num_threads": None},
        {"policy.encoder_sizes": []},
        {"seed": 2**31 - 1},
    ],
    ids=changed,
)
def test_the_ends_of_a_range_are_fine(checked, changes):
    checked(changes)


# Choices and ranges


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("env.source", envs.source_names()),
        ("env.vectorization", ("inline", "vector_entry_point", "serial", "parallel", "gymnasium")),
        ("algorithm.critic", ("shared", "recurrent", "feedforward")),
        ("algorithm.objective", ("clip", "kl", "plain")),
        ("algorithm.normalize_advantage", ("none", "minibatch", "batch")),
        ("lr_schedule", ("linear", "adaptive")),
        ("algorithm.critic_loss", ("l2", "smooth_l1")),
        ("backend.name", backend_names()),
        ("cell.name", ("gru", "lstm", "none")),
        ("collector.name", ("single",)),
        ("logger.name", ("csv", "tensorboard", "wandb")),
        ("logger.mode", ("auto", "online", "offline")),
        ("policy.image_encoder", ("nature", "impala")),
        ("policy.bounded_action", ("clip", "tanh")),
        ("recompute.name", ("none", "full", "chunk")),
        ("state", ("stored", "zero", "burn_in", "refresh")),
        ("precision.name", ("ieee", "tf32", "tf32x3", "bf16", "fast", "high-prec")),
    ],
)
def test_a_value_that_is_not_among_the_choices_is_refused_with_those_that_are(refusal, key, names):
    error = refusal({key: "nonesuch"})
    assert "=nonesuch does not exist. Choose one of: " in error
    listed = error.partition("Choose one of: ")[2].rstrip(".").split(", ")
    assert set(names) <= set(listed)


def test_tensorboard_is_refused_where_it_is_not_installed(refusal, not_installed):
    not_installed("tensorboard")
    assert refusal({"logger.name": "tensorboard"}) == (
        "logger=tensorboard needs the tensorboard package. Install it with: pip install 'recurrl[tensorboard]'"
    )


@pytest.mark.parametrize(("key", "value"), [("project", "mine"), ("mode", "offline"), ("id", "abc")])
def test_an_option_of_wandb_is_refused_with_another_logger(key, value, refusal):
    assert refusal({f"logger.{key}": value}) == (
        f"logger.{key}={value} is an option of logger=wandb, and this run has logger=csv. Leave it out, or choose "
        "logger=wandb."
    )


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize(
    "key",
    [
        "env.num_envs",
        "env.max_episode_steps",
        "cell.hidden_size",
        "cell.num_layers",
        "policy.encoder_sizes",
        "total_frames",
        "frames_per_batch",
        "slice_len",
        "epochs",
        "minibatch_slices",
        "num_threads",
        "checkpoint.every_frames",
        "checkpoint.keep_last",
        "max_skipped_steps",
        "evaluation.episodes",
        "evaluation.every_frames",
        "burn_in_len",
    ],
)
def test_a_count_below_one_is_refused(refusal, key, value):
    if key == "policy.encoder_sizes":
        assert refusal({key: [8, value]}) == (
            f"policy.encoder_sizes[1]={value} is too small. Give a whole number of at least 1."
        )
    else:
        assert refusal({key: value}) == f"{key}={value} is too small. Give a whole number of at least 1."


COUNTS = {
    "env.num_envs": 2**16,
    "evaluation.episodes": 2**16,
    "cell.hidden_size": 2**16,
    "policy.encoder_sizes": 2**16,
    "cell.num_layers": 2**8,
    "num_threads": 2**10,
    "frames_per_batch": 10**12,
    "epochs": 10**12,
}
"""The largest of each that is taken."""


@pytest.mark.parametrize(("key", "most"), COUNTS.items())
def test_a_count_that_no_machine_could_serve_is_refused_with_the_largest_one(refusal, key, most):
    for value in (most + 1, 10**30):
        whole = {key: [value] if key == "policy.encoder_sizes" else value}
        named = "policy.encoder_sizes[0]" if key == "policy.encoder_sizes" else key
        assert refusal(whole) == f"{named}={value} is too large. Give a whole number of at most {most}."


SCALES = (
    "env.reward_scale",
    "policy.initial_std",
    *(f"algorithm.{key}" for key in ("entropy_coeff", "critic_coeff", "kl_coeff", "clip_epsilon_high")),
)


@pytest.mark.parametrize(("key", "most"), [("lr", "1"), *((key, "1e+06") for key in SCALES)])
def test_a_scale_by_which_numbers_would_overflow_is_refused(refusal, key, most):
    assert refusal({key: 1e300}) == f"{key}=1e+300 is too large. Give a number of at most {most}."


def test_the_divisors_that_a_refusal_names_are_found_at_once_even_of_a_huge_number(refusal):
    error = refusal({"frames_per_batch": 10**12, "total_frames": 10**12, "env.num_envs": 1, "slice_len": 7})
    assert error.startswith("slice_len=7 does not divide a row of 1000000000000 steps. Give one of: 1, 2, 4, 5, 8, 10,")


@pytest.mark.parametrize("key", ["seed", "resume", "logger.project", "env.id"])
def test_an_interpolation_of_a_key_that_does_not_exist_is_refused(refused, key):
    assert "'nonesuch'" in refused(f"{key}=${{nonesuch}}")


@pytest.mark.parametrize(
    ("key", "value", "advice"),
    [(key, value, advice) for advice, (keys, bad) in RANGES.items() for key in keys for value in bad],
)
def test_a_number_out_of_its_range_is_refused_with_the_range(refusal, key, value, advice):
    assert refusal({key: value}) == f"{key}={value} is out of range. Give {advice}."


def test_a_clip_range_of_one_is_refused(refusal):
    assert refusal({"algorithm.clip_epsilon": 1.0}) == "algorithm.clip_epsilon=1.0 must be below 1."


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_a_seed_out_of_range_is_refused(refusal, seed):
    assert refusal({"seed": seed}) == f"seed={seed} is out of range. Give a whole number from 0 to 2147483647."


# Options of an algorithm


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("critic_coeff", 0.5, "has no critic"),
        ("critic", "recurrent", "has no critic"),
        ("lmbda", 0.9, "has no critic"),
        ("clip_value", 0.2, "has no critic"),
        ("objective", "kl", "has one objective"),
    ],
)
def test_grpo_refuses_an_option_of_ppo(refused, key, value, reason):
    assert refused("algorithm=grpo", f"algorithm.{key}={value}") == (
        f"algorithm.{key}={value} is an option of algorithm=ppo, but algorithm=grpo {reason}. Leave it out, or choose "
        "algorithm=ppo."
    )


def test_ppo_refuses_an_option_of_grpo(refusal):
    assert refusal({"algorithm.group_size": 8}) == (
        "algorithm.group_size=8 is an option of algorithm=grpo, but algorithm=ppo forms no groups. Leave it out, or "
        "choose algorithm=grpo."
    )


def test_an_option_that_its_algorithm_needs_cannot_be_null(refusal):
    assert refusal({"algorithm.critic_coeff": None}) == (
        "algorithm.critic_coeff is null, and algorithm=ppo needs it. Give a value, or leave it out."
    )


@pytest.mark.parametrize(
    ("size", "envs", "error"),
    [
        (
            3,
            16,
            "algorithm.group_size=3 does not divide env.num_envs=16, so the environments do not form groups. Give one "
            "of: 2, 4, 8, 16.",
        ),
        (1, 16, "algorithm.group_size=1 leaves nothing to compare an episode with. Give one of: 2, 4, 8, 16."),
        (
            8,
            1,
            "algorithm.group_size=8 does not divide env.num_envs=1, so the environments do not form groups. Give a "
            "larger env.num_envs.",
        ),
    ],
)
def test_groups_that_do_not_fit_the_environments_are_refused(refused, size, envs, error):
    assert refused("experiment=cartpole_grpo", f"algorithm.group_size={size}", f"env.num_envs={envs}") == error


@pytest.mark.parametrize(("key", "names"), [("advantage", "outcome, process"), ("aggregation", "step, episode")])
def test_a_choice_of_grpos_that_does_not_exist_is_refused(refused, key, names):
    assert refused("algorithm=grpo", f"algorithm.{key}=nonesuch") == (
        f"algorithm.{key}=nonesuch does not exist. Choose one of: {names}."
    )


def test_rows_that_begin_with_a_reset_and_are_shorter_than_an_episode_are_refused(refused):
    assert refused("algorithm=grpo") == (
        "With algorithm=grpo every row begins with a reset, and rows have 32 steps (frames_per_batch / env.num_envs), "
        "but an episode of CartPole-v1 may have 500: what comes after would never be seen. Give "
        "frames_per_batch=16000, and a slice_len that divides 500; or, if shorter episodes are meant, "
        "env.max_episode_steps=32."
    )


# Values that do not go together


@pytest.mark.parametrize("backend", ["pad", "reference"])
def test_recomputation_is_refused_with_a_backend_that_has_none(refusal, backend):
    error = refusal({"recompute.name": "full", "backend.name": backend})
    assert error.startswith(f"recompute=full is not possible with backend={backend}, ")
    assert error.endswith("Choose backend=scan, or recompute=none.")


def test_pieces_of_no_steps_are_refused(refusal):
    assert refusal({"recompute.name": "chunk", "recompute.chunk_len": 0}).endswith("chunk_len=0. Give 1 or more.")


def test_values_that_do_not_go_together_are_refused_at_the_command_line(refused):
    assert refused("recompute=full", "backend=pad").startswith("recompute=full is not possible with backend=pad, ")


def test_the_triton_backend_is_refused_on_a_cpu(refusal, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert refusal({"backend.name": "triton"}).startswith(
        "backend=triton needs a CUDA device, and this is device=cpu. Choose backend=auto, or backend=pad on a GPU and "
        "backend=scan on a CPU."
    )


def test_the_triton_backend_is_refused_a_cell_that_is_too_large(refusal):
    assert refusal({"backend.name": "triton", "cell.hidden_size": 2048}).startswith(
        "hidden_size=2048 is not possible with backend=triton, whose kernels are tested up to 1024 features"
    )


@pytest.mark.parametrize(
    ("precision", "sentence"),
    [
        ("tf32", "precision=tf32 needs a GPU, and device=cpu has no such format. Choose precision=ieee."),
        ("tf32x3", "precision=tf32x3 is not possible with backend=scan: it needs backend=triton, on a GPU."),
        ("bf16", "precision=bf16 is not possible with backend=scan: it needs backend=triton, on a GPU."),
    ],
)
def test_a_reduced_precision_is_refused_on_a_cpu(refusal, precision, sentence):
    assert refusal({"precision.name": precision}) == sentence


def test_a_cuda_device_is_refused_where_there_is_none(refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    error = refused("device=cuda")
    assert error.startswith(f"device=cuda was asked for, but torch {torch.__version__} finds no CUDA device here.")
    assert "Choose device=cpu, or install a CUDA build of torch" in error


def test_a_cuda_device_beyond_those_there_are_is_refused(refusal, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert refusal({"device": "cuda:2"}) == (
        "device=cuda:2 was asked for, but there are 2 CUDA devices, numbered from 0."
    )


@pytest.mark.parametrize("device", ["nonsense", "0", "cpu:x", ""])
def test_a_device_torch_does_not_know_is_refused(refusal, device):
    assert refusal({"device": device}) == (
        f"device={device} is not a device torch knows. Choose auto, cpu, cuda or cuda:0."
    )


@pytest.mark.parametrize("device", ["meta", "mps", "xla"])
def test_a_device_recurrl_does_not_train_on_is_refused(refusal, device):
    error = refusal({"device": device})
    assert f"device={device}" in error
    assert "cpu" in error
    assert "cuda" in error


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"slice_len": 64},
            "slice_len=64 is longer than a row, which has 32 steps (frames_per_batch / env.num_envs). "
            "Give slice_len=32 or a divisor of it, or a larger frames_per_batch.",
        ),
        (
            {"slice_len": 5},
            "slice_len=5 does not divide a row of 32 steps. Give one of: 1, 2, 4, 8, 16, 32.",
        ),
        (
            {"minibatch_slices": 5},
            "minibatch_slices=5 does not divide the 32 slices of an iteration (frames_per_batch / slice_len). "
            "Give one of: 1, 2, 4, 8, 16, 32.",
        ),
        (
            {"minibatch_slices": 64},
            "minibatch_slices=64 does not divide the 32 slices of an iteration (frames_per_batch / slice_len). "
            "Give one of: 1, 2, 4, 8, 16, 32.",
        ),
        (
            {"frames_per_batch": 1000},
            "frames_per_batch=1000 does not divide evenly among env.num_envs=32. Give a multiple of 32, for example "
            "frames_per_batch=992.",
        ),
        (
            {"frames_per_batch": 8},
            "frames_per_batch=8 does not divide evenly among env.num_envs=32. Give a multiple of 32, for example "
            "frames_per_batch=32.",
        ),
        (
            {"total_frames": 1023},
            "total_frames=1023 is less than one iteration of frames_per_batch=1024. Give more total_frames, or a "
            "smaller frames_per_batch.",
        ),
    ],
    ids=lambda value: changed(value) if isinstance(value, dict) else "",
)
def test_batches_that_do_not_work_out_are_refused_with_ones_that_do(refusal, changes, sentence):
    assert refusal(changes) == sentence


@pytest.mark.parametrize(
    "changes",
    [
        {"slice_len": 1},
        {"slice_len": 4},
        {"minibatch_slices": 1},
        {"minibatch_slices": 32},
        {"frames_per_batch": 992, "slice_len": 31},
        {"total_frames": 1024},
    ],
    ids=changed,
)
def test_what_such_a_refusal_advises_is_fine(checked, changes):
    checked(changes)


# State policies


BURN_IN = {"state": "burn_in", "burn_in_len": 4, "slice_len": 8, "minibatch_slices": 8}


@pytest.mark.parametrize("changes", [{"state": "zero"}, {"state": "refresh"}, BURN_IN], ids=changed)
def test_a_state_policy_is_fine(checked, changes):
    checked(changes)


@pytest.mark.parametrize("state", ["zero", "refresh", "burn_in"])
def test_a_state_policy_is_refused_for_a_policy_without_states(refusal, state):
    assert refusal({**BURN_IN, "state": state, "cell.name": "none"}) == (
        f"state={state} is about recurrent states, and cell=none has none. Leave state out, or choose a cell."
    )


@pytest.mark.parametrize("state", ["stored", "zero", "refresh"])
def test_a_burn_in_length_is_refused_with_another_state_policy(refusal, state):
    assert refusal({"state": state, "burn_in_len": 4}) == (
        f"burn_in_len=4 has no meaning with state={state}. Leave it out, or give state=burn_in."
    )


def test_burning_in_is_refused_without_a_length(refusal):
    assert refusal({**BURN_IN, "burn_in_len": None}) == (
        "state=burn_in needs burn_in_len, the number of steps that warm the state before a slice. Give burn_in_len=4, "
        "for example."
    )


@pytest.mark.parametrize("length", [8, 9])
def test_a_burn_in_as_long_as_a_slice_is_refused(refusal, length):
    assert refusal({**BURN_IN, "burn_in_len": length}).startswith(
        f"burn_in_len={length} is not less than slice_len=8: burn-in comes out of the one slice before."
    )


def test_burning_in_is_refused_where_a_slice_is_a_whole_row(refusal):
    assert refusal({**BURN_IN, "slice_len": 32}).startswith(
        "state=burn_in has no steps to burn in with slice_len=32, which is a whole row: no slice has steps before it."
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"collector.num_workers": 2},
            "collector.num_workers=2 was asked for, but collector=single collects in this process alone. Choose "
            "collector=multi_sync or collector=multi_async.",
        ),
        (
            {"collector.name": "multi_sync", "collector.num_workers": 5},
            "env.num_envs=32 does not divide evenly among collector.num_workers=5. Give a multiple of 5, for example "
            "env.num_envs=30.",
        ),
        (
            {"collector.name": "multi_async", "collector.num_workers": 0},
            "collector.num_workers=0 is too small. Give a whole number of at least 1.",
        ),
        (
            {"collector.timeout_s": 0.0},
            "collector.timeout_s=0.0 is out of range. Give a finite number above 0.",
        ),
        (
            {"collector.on_fault": "restart", "env.vectorization": "serial"},
            "collector.on_fault=restart with collector=single goes on only from faults of env.vectorization=inline, "
            "and serial was asked for, which does not tell an environment's faults from others. Choose "
            "env.vectorization=inline, collector=multi_sync or collector.on_fault=raise.",
        ),
    ],
    ids=lambda value: changed(value) if isinstance(value, dict) else "",
)
def test_workers_that_do_not_work_out_are_refused(refusal, changes, sentence):
    assert refusal(changes) == sentence


def test_groups_are_refused_where_workers_reset_on_their_own(refused):
    assert refused("algorithm=grpo", "collector=multi_sync", "frames_per_batch=8_000", "slice_len=25") == (
        "algorithm=grpo compares episodes of environments that are reset together, which the workers of "
        "collector=multi_sync are not. Choose collector=single, or algorithm=ppo."
    )


def test_groups_are_refused_where_environments_share_their_random_numbers(recurrl_train, tmp_path):
    outcome = recurrl_train(
        *("algorithm=grpo", "env=t_maze", "env.num_envs=8", "algorithm.group_size=4", "frames_per_batch=400"),
        *("slice_len=25", "minibatch_slices=4"),
        cwd=tmp_path,
    )
    assert outcome.error.startswith("env=t_maze draws the episodes of all its environments from one generator, so that")
