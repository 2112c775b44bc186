"""The configuration: what composes, and what is refused, with a sentence that says what to do."""

from __future__ import annotations

import importlib.resources
import importlib.util
import math
import shutil
from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from functools import reduce
from itertools import zip_longest
from pathlib import Path

import gymnasium
import pytest
import torch
from omegaconf import DictConfig, ListConfig, OmegaConf

from recurrl import checkpoint, envs
from recurrl.config import ConfigError, TrainConfig, check, key_paths, run_directory_of, typed
from recurrl.losses import algorithm_names
from recurrl.recurrent.backends import backend_names

CONFIGS = Path(str(importlib.resources.files("recurrl.configs")))
GROUPS = ("env", "cell", "backend", "recompute", "precision", "algorithm", "collector", "logger")
OPTIONS = [(group, path.stem) for group in GROUPS for path in sorted((CONFIGS / group).glob("*.yaml"))]
EXPERIMENTS = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))
NOT_ON_A_CPU = {("backend", "triton"), ("precision", "tf32"), ("precision", "tf32x3"), ("precision", "bf16")}
NEEDS_AN_ID = ("env", "gym")


class EnvironmentMadeError(Exception):
    """An environment was made where none may be."""


@pytest.fixture
def no_environments(monkeypatch) -> None:
    def make(*args, **kwargs):
        raise EnvironmentMadeError

    monkeypatch.setattr(gymnasium, "make", make)


@pytest.fixture
def refused(recurrl_train, tmp_path, no_environments) -> Callable[..., str]:
    """What the console command says to overrides that it refuses before it makes an environment."""

    def refused(*overrides: str) -> str:
        outcome = recurrl_train(*overrides, cwd=tmp_path)
        assert outcome.error, outcome.err
        assert outcome.code == 1
        assert "Traceback" not in outcome.err
        return outcome.error

    return refused


@pytest.fixture(scope="session")
def untyped_defaults(compose_untyped) -> DictConfig:
    """The defaults, with the sizes that the sentences below are about."""
    sizes = ["frames_per_batch=1024", "env.num_envs=32", "slice_len=32", "minibatch_slices=8", "total_frames=50_000"]
    return compose_untyped("device=cpu", *sizes)


@pytest.fixture(scope="session")
def defaults(untyped_defaults) -> TrainConfig:
    return typed(untyped_defaults)


@pytest.fixture
def checked(defaults, no_environments) -> Callable[..., TrainConfig]:
    """Checks the defaults with some values changed, as a run does before it makes an environment."""

    def checked(changes: dict[str, object]) -> TrainConfig:
        config = deepcopy(defaults)
        for key, value in changes.items():
            *groups, name = key.split(".")
            setattr(reduce(getattr, groups, config), name, value)
        check(config)
        envs.check(config.env)
        checkpoint.check_resume(config)
        return config

    return checked


@pytest.fixture
def refusal(checked) -> Callable[..., str]:
    """The sentence with which changes of the defaults are refused before an environment is made."""

    def refusal(changes: dict[str, object]) -> str:
        with pytest.raises(ConfigError) as caught:
            checked(changes)
        return str(caught.value)

    return refusal


@pytest.fixture
def untypable(untyped_defaults) -> Callable[..., str]:
    """The sentence with which one value in place of the default is refused when the configuration gets its types."""

    def untypable(key: str, value: object) -> str:
        values = deepcopy(untyped_defaults)
        OmegaConf.update(values, key, value, force_add=True)
        with pytest.raises(ConfigError) as caught:
            typed(values)
        return str(caught.value)

    return untypable


def changed(changes: dict[str, object]) -> str:
    return " ".join(f"{key}={value}" for key, value in changes.items())


def missing(monkeypatch, package: str) -> None:
    """Makes a package look as if it were not installed."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else find_spec(name, *rest)
    )


# What is fine


def test_the_defaults_are_fine(compose):
    config = compose()
    check(config)
    envs.check(config.env)
    checkpoint.check_resume(config)


def test_a_run_that_is_not_refused_does_make_an_environment(recurrl_train, tmp_path, no_environments):
    # Otherwise the refusals below would not show that none is made before them.
    assert "EnvironmentMadeError" in recurrl_train(cwd=tmp_path).err


@pytest.fixture(scope="session")
def composed_options(compose) -> dict[tuple[str, str], object]:
    """Each option of each group, composed. One composition takes a third of a second, so each is of several groups."""
    composed = {}
    for row in zip_longest(*([pair for pair in OPTIONS if pair[0] == group] for group in GROUPS)):
        pairs = [pair for pair in row if pair is not None]
        needed = ["env.id=Acrobot-v1"] if NEEDS_AN_ID in pairs else []
        config = compose(*(f"{group}={option}" for group, option in pairs), *needed)
        composed |= {(group, option): getattr(config, group) for group, option in pairs}
    return composed


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_of_every_group_composes_and_is_fine_where_it_can_run(
    defaults, composed_options, group, option, monkeypatch
):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    chosen = composed_options[group, option]
    assert chosen.name == option
    config = replace(defaults, **{group: chosen})
    for package in (*config.env.packages, *(["tensorboard"] if option == "tensorboard" else [])):
        pytest.importorskip(package)
    if (group, option) in NOT_ON_A_CPU:
        with pytest.raises(ConfigError, match=f"{group}={option} "):
            check(config)
    else:
        check(config)
        envs.check(config.env)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes_and_is_fine(compose, experiment):
    config = compose(f"experiment={experiment}")
    for package in config.env.packages:
        pytest.importorskip(package)
    # What an experiment says about the device is for its own machine.
    check(replace(config, device="cpu", precision=replace(config.precision, name="ieee")))
    envs.check(config.env)


def test_a_users_own_experiment_composes(recurrl_train, tmp_path):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "long.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /cell: lstm\ntotal_frames: 2048\n", encoding="utf-8"
    )
    outcome = recurrl_train("--config-dir", "mine", "--cfg", "job", "experiment=long", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    composed = typed(OmegaConf.create(outcome.out))
    assert (composed.cell.name, composed.total_frames) == ("lstm", 2048)


def test_the_yaml_files_give_a_value_to_each_key_of_the_schema_and_to_no_other(untyped_defaults):
    def paths(values, prefix=""):
        for key, value in values.items():
            yield prefix + key
            if isinstance(value, dict) and prefix + key != "env.kwargs":
                yield from paths(value, f"{prefix}{key}.")

    assert set(paths(OmegaConf.to_container(untyped_defaults))) == set(key_paths(TrainConfig))


def test_a_typed_configuration_is_plain_dataclasses_lists_and_dictionaries(compose):
    def visit(value):
        assert not isinstance(value, DictConfig | ListConfig)
        if is_dataclass(value):
            for field in fields(value):
                visit(getattr(value, field.name))

    config = compose("+env.kwargs.sutton_barto_reward=true")
    visit(config)
    assert is_dataclass(config.algorithm)
    assert config.env.mask == [1, 3]
    assert config.env.kwargs == {"sutton_barto_reward": True}
    assert isinstance(config.lr, float)
    assert isinstance(config.total_frames, int)


def test_rows_slices_and_iterations_follow_from_the_batch(compose):
    config = compose("total_frames=100", "frames_per_batch=48", "env.num_envs=4", "slice_len=6")
    assert config.steps_per_row == 12
    assert config.slices_per_batch == 8
    assert config.iterations == 2


def test_a_preset_precision_is_fine_on_a_cpu(checked):
    assert checked({"precision.name": "fast"}).precision.name == "fast"


def test_a_feed_forward_policy_has_no_backend_to_refuse(checked):
    assert checked({"cell.name": "none", "backend.name": "triton"}).cell.name == "none"


def test_full_recomputation_is_fine_where_the_backend_is_free(checked):
    checked({"recompute.name": "full"})
    checked({"recompute.name": "full", "backend.name": "scan"})


@pytest.mark.parametrize(("available", "device"), [(True, "cuda"), (False, "cpu")])
def test_an_automatic_device_is_the_gpu_where_there_is_one(compose, monkeypatch, available, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert compose("device=auto").device == device


@pytest.mark.parametrize("cuda", ["cuda", "cuda:0", "cuda:1"])
def test_a_cuda_device_that_is_there_is_fine(checked, monkeypatch, cuda):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert checked({"device": cuda}).device == cuda


# Keys and options that there are not


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["minibatch_slice=4"],
            "There is no configuration key 'minibatch_slice'. Did you mean minibatch_slices?",
        ),
        (["env.num_env=4"], "There is no configuration key 'env.num_env'. Did you mean env.num_envs"),
        (["hidden_size=8"], "There is no configuration key 'hidden_size'. Did you mean cell.hidden_size?"),
        (["+gama=0.9"], "There is no configuration key 'gama'. Did you mean algorithm.gamma"),
        (["++xyzzy=1"], "There is no configuration key 'xyzzy'. recurrl-train --cfg job lists all keys."),
        (["-m", "sed=0,1"], "There is no configuration key 'sed'. Did you mean seed?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_key_that_does_not_exist_is_refused_with_the_nearest_one(refused, overrides, sentence):
    assert refused(*overrides).startswith(sentence)


def test_a_misspelt_key_in_a_file_of_the_user_is_refused_with_the_nearest_one(untypable):
    assert untypable("env.num_env", 4).startswith(
        "There is no configuration key 'env.num_env'. Did you mean env.num_envs"
    )


@pytest.mark.parametrize("group", ["cell", "backend", "env", "precision", "algorithm", "logger"])
def test_an_option_that_does_not_exist_is_refused_with_those_that_do(refused, group):
    error = refused(f"{group}=nonesuch")
    assert f"'{group}/nonesuch'" in error
    assert {option for listed, option in OPTIONS if listed == group} <= set(error.split())


def test_an_experiment_that_does_not_exist_is_refused(refused):
    assert "experiment/nonesuch" in refused("experiment=nonesuch")


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("env.source", envs.source_names()),
        ("env.vectorization", ("inline", "serial", "parallel", "gymnasium")),
        ("algorithm.critic_loss", ("l2", "smooth_l1")),
        ("backend.name", backend_names()),
        ("cell.name", ("gru", "lstm", "none")),
        ("collector.name", ("single",)),
        ("logger.name", ("csv", "tensorboard", "wandb")),
        ("logger.mode", ("auto", "online", "offline")),
        ("recompute.name", ("none", "full")),
        ("precision.name", ("ieee", "tf32", "tf32x3", "bf16", "fast", "high-prec")),
    ],
)
def test_a_value_that_is_not_among_the_choices_is_refused_with_those_that_are(refusal, key, names):
    error = refusal({key: "nonesuch"})
    assert "=nonesuch does not exist. Choose one of: " in error
    listed = error.partition("Choose one of: ")[2].rstrip(".").split(", ")
    assert set(names) <= set(listed)


def test_an_algorithm_that_does_not_exist_is_refused_with_those_that_do(refused):
    assert refused("algorithm.name=nonesuch") == (
        f"algorithm=nonesuch does not exist. Choose one of: {', '.join(algorithm_names())}."
    )


def test_a_group_without_a_choice_is_refused(refused):
    assert "cell" in refused("cell=null")


# Values of the wrong type, and numbers out of range


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epochs", "abc"),
        ("epochs", 1.5),
        ("total_frames", math.nan),
        ("seed", True),
        ("lr", "abc"),
        ("lr", None),
        ("env.num_envs", None),
        ("env.mask", ["a"]),
        ("env.kwargs", 3),
        ("env.normalize_observation", "perhaps"),
        ("cell", None),
    ],
    ids=str,
)
def test_a_value_of_the_wrong_type_is_refused_by_the_name_of_its_key(untypable, key, value):
    error = untypable(key, value)
    assert error.startswith(f"The configuration key '{key}")
    assert error.endswith("Give a value of that type.")
    assert ".. " not in error


@pytest.mark.parametrize(
    ("key", "value"), [("env.mask", 3), ("env.packages", "popgym"), ("policy.encoder_sizes", 8)], ids=str
)
def test_one_value_where_a_list_belongs_is_refused_with_how_a_list_is_written(untypable, key, value):
    error = untypable(key, value)
    assert error.startswith(f"The configuration key '{key}'")
    assert f"{key}=[" in error


def test_a_value_of_the_wrong_type_is_refused_at_the_command_line(refused):
    assert refused("epochs=abc") == (
        "The configuration key 'epochs': Value 'abc' of type 'str' could not be converted to Integer. "
        "Give a value of that type."
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
        "evaluation.episodes",
        "evaluation.every_frames",
    ],
)
def test_a_count_below_one_is_refused(refusal, key, value):
    if key == "policy.encoder_sizes":
        assert refusal({key: [8, value]}) == (
            f"policy.encoder_sizes[1]={value} is too small. Give a whole number of at least 1."
        )
    else:
        assert refusal({key: value}) == f"{key}={value} is too small. Give a whole number of at least 1."


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    "key",
    [
        "lr",
        "env.reward_scale",
        "policy.initial_std",
        "algorithm.clip_epsilon",
        "algorithm.max_grad_norm",
        "algorithm.target_kl",
        "algorithm.clip_value",
    ],
)
def test_a_number_that_must_be_positive_and_is_not_is_refused(refusal, key, value):
    assert refusal({key: value}) == f"{key}={value} is out of range. Give a finite number above 0."


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
@pytest.mark.parametrize(
    "key",
    [
        "algorithm.gamma",
        "algorithm.lmbda",
        "algorithm.clip_final_fraction",
        "algorithm.entropy_final_fraction",
        "lr_final_fraction",
    ],
)
def test_a_fraction_outside_zero_and_one_is_refused(refusal, key, value):
    assert refusal({key: value}) == f"{key}={value} is out of range. Give a number from 0 to 1."


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
@pytest.mark.parametrize("key", ["algorithm.entropy_coeff", "algorithm.critic_coeff"])
def test_a_weight_of_the_loss_that_is_negative_or_no_number_is_refused(refusal, key, value):
    assert refusal({key: value}) == f"{key}={value} is out of range. Give a finite number, 0 or above."


def test_a_clip_range_of_one_is_refused(refusal):
    assert refusal({"algorithm.clip_epsilon": 1.0}) == "algorithm.clip_epsilon=1.0 must be below 1."


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_a_seed_out_of_range_is_refused(refusal, seed):
    assert refusal({"seed": seed}) == f"seed={seed} is out of range. Give a whole number from 0 to 2147483647."


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


# Values that do not go together


@pytest.mark.parametrize("backend", ["pad", "reference"])
def test_recomputation_is_refused_with_a_backend_that_has_none(refusal, backend):
    error = refusal({"recompute.name": "full", "backend.name": backend})
    assert error.startswith(f"recompute=full is not possible with backend={backend}, ")
    assert error.endswith("Choose backend=scan, or recompute=none.")


def test_values_that_do_not_go_together_are_refused_at_the_command_line(refused):
    assert refused("recompute=full", "backend=pad").startswith("recompute=full is not possible with backend=pad, ")


def test_the_triton_backend_is_refused_on_a_cpu(refusal, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert refusal({"backend.name": "triton"}).startswith(
        "backend=triton needs a CUDA device, and this is device=cpu. Choose backend=auto, or backend=pad on a GPU and "
        "backend=scan on a CPU."
    )


def test_the_triton_backend_is_refused_a_cell_that_is_too_large(refusal):
    assert refusal({"backend.name": "triton", "cell.hidden_size": 256}).startswith(
        "hidden_size=256 is not possible with backend=triton, whose kernels keep the recurrent weights on the chip: at "
        "most 128 features"
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


# Environments


def test_an_id_that_is_not_registered_is_refused_with_near_ones(refused):
    error = refused("env=gym", "env.id=CartPol-v1")
    assert error.startswith("env.id=CartPol-v1 is not registered with Gymnasium. Did you mean CartPole-v1")
    assert error.endswith("If another package registers it, name that package: env.packages=[package].")


def test_an_id_like_none_that_is_registered_is_refused_without_guesses(refusal):
    assert refusal({"env.id": "qqqqqqqq"}) == (
        "env.id=qqqqqqqq is not registered with Gymnasium. If another package registers it, name that package: "
        "env.packages=[package]."
    )


def test_any_gymnasium_environment_without_its_id_is_refused(refused):
    error = refused("env=gym")
    assert "'env.id'" in error
    assert "has to be given" in error
    assert "Give a value of that type" not in error


def test_a_key_that_was_deleted_is_refused(refused):
    error = refused("~lr")
    assert "'lr'" in error
    assert "has to be given" in error


def test_a_package_that_is_not_installed_is_refused_with_the_command_that_installs_it(refusal, monkeypatch):
    missing(monkeypatch, "some_games")
    assert refusal({"env.packages": ["some_games"]}) == (
        "env=cartpole_novel needs the package some_games. Install it with: pip install some_games"
    )


def test_a_package_within_one_that_is_not_installed_is_refused(refusal):
    assert "pip install some_games" in refusal({"env.packages": ["some_games.classic"]})


def test_a_package_that_is_an_extra_of_recurrl_is_refused_with_the_extra(refused, monkeypatch):
    missing(monkeypatch, "popgym")
    assert refused("env=repeat_previous") == (
        "env=repeat_previous needs the package popgym. Install it with: pip install 'recurrl[popgym]'"
    )


def test_tensorboard_is_refused_where_it_is_not_installed(refusal, monkeypatch):
    missing(monkeypatch, "tensorboard")
    assert refusal({"logger.name": "tensorboard"}) == (
        "logger=tensorboard needs the tensorboard package. Install it with: pip install 'recurrl[tensorboard]'"
    )


def test_a_negative_index_in_the_mask_is_refused(refusal):
    assert refusal({"env.mask": [1, -1]}) == (
        "env.mask=[1, -1] holds a negative index. Give indices of the observation, from 0."
    )


@pytest.mark.parametrize("mask", [[4], [0, 1, 2, 3]], ids=str)
def test_a_mask_that_does_not_fit_is_refused_when_the_first_environment_is_made(recurrl_train, tmp_path, mask):
    # Only the environment itself knows how long its observation is.
    outcome = recurrl_train(f"env.mask={mask}".replace(" ", ""), cwd=tmp_path)
    assert outcome.code == 1
    assert outcome.error == (
        f"env.mask={mask} does not fit an observation of 4 entries: give indices from 0 to 3, and leave at least one "
        "entry to see."
    )


def test_a_mask_of_an_observation_that_is_no_vector_is_refused(recurrl_train, tmp_path):
    outcome = recurrl_train("env=gym", "env.id=CliffWalking-v1", "env.mask=[0]", cwd=tmp_path)
    assert outcome.error == (
        "env.mask=[0] hides entries of a vector, but the observation space is Discrete(48). Remove env.mask."
    )


def test_an_argument_the_environment_does_not_take_is_refused(recurrl_train, tmp_path):
    outcome = recurrl_train("+env.kwargs.gravitas=1", cwd=tmp_path)
    assert "env.kwargs={'gravitas': 1}" in outcome.error
    assert "unexpected keyword argument 'gravitas'" in outcome.error
    assert "Traceback" not in outcome.err


def test_an_environment_that_lacks_a_package_is_refused_with_what_gymnasium_says(recurrl_train, tmp_path, monkeypatch):
    def make(*args, **kwargs):
        raise gymnasium.error.DependencyNotInstalled('MuJoCo is not installed, run `pip install "gymnasium[mujoco]"`')

    monkeypatch.setattr(gymnasium, "make", make)
    outcome = recurrl_train("env=gym", "env.id=HalfCheetah-v5", cwd=tmp_path)
    assert "env.id=HalfCheetah-v5" in outcome.error
    assert 'pip install "gymnasium[mujoco]"' in outcome.error
    assert "Traceback" not in outcome.err


# Runs to go on from


def test_going_on_from_what_does_not_exist_is_refused(refused):
    assert refused("resume=nowhere") == (
        "nowhere does not exist. Give a directory that a training run wrote (it holds config.yaml and "
        "checkpoints/), or one of the checkpoints in it."
    )


def test_going_on_from_a_name_that_looks_like_a_number_is_refused(refused):
    assert refused("resume=3").startswith("3 does not exist. Give a directory that a training run wrote")


def test_going_on_from_a_folder_that_is_no_run_is_refused(refusal, tmp_path):
    assert refusal({"resume": str(tmp_path)}).startswith(
        f"{tmp_path} is neither a run directory nor a checkpoint in one. Give a directory that a training run wrote"
    )


def test_going_on_from_a_run_without_a_checkpoint_is_refused(refusal, finished_run, tmp_path):
    run = shutil.copytree(finished_run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    assert refusal({"resume": str(run)}) == (
        f"{run} holds no checkpoint to go on from: its run ended before it wrote one. Choose another run, or start "
        "anew without resume."
    )


def test_going_on_with_nothing_left_to_do_is_refused(refused, finished_run):
    assert refused(f"resume={finished_run}") == (
        f"resume={finished_run} has seen 64 frames already, so total_frames=64 leaves nothing to do. Give "
        "total_frames of at least 96."
    )


def test_a_run_directory_is_found_from_itself_and_from_its_checkpoints(finished_run):
    assert run_directory_of(finished_run) == finished_run
    assert run_directory_of(finished_run / "checkpoints" / "frames_000000000032") == finished_run
