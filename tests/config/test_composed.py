"""Conversion of a composed configuration to dataclasses, and errors for wrong keys and types."""

import math
from copy import deepcopy
from dataclasses import fields, is_dataclass

import pytest
import torch
from omegaconf import DictConfig, ListConfig, OmegaConf
from rejections import error_of

from recurrl.config.composed import typed
from recurrl.recurrent import set_recurrent_matmul_precision


@pytest.fixture
def untypable(untyped_defaults):
    """The error for one wrong value, when the configuration is converted."""

    def untypable(key, value):
        values = deepcopy(untyped_defaults)
        OmegaConf.update(values, key, value, force_add=True)
        return error_of(typed, values)

    return untypable


# Valid configurations


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


@pytest.mark.parametrize(("available", "device"), [(True, "cuda"), (False, "cpu")])
def test_an_automatic_device_is_the_gpu_where_there_is_one(compose, monkeypatch, available, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert compose("device=auto").device == device


def test_an_automatic_precision_is_not_that_of_an_earlier_job_of_a_sweep(compose):
    assert compose().precision == "ieee"
    torch.set_float32_matmul_precision("medium")
    try:
        assert compose().precision == "ieee"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert compose("precision=tf32").precision == "tf32"


def test_an_automatic_precision_follows_the_process_wide_setting(compose):
    set_recurrent_matmul_precision("bf16")
    try:
        assert compose().precision == "bf16"
    finally:
        set_recurrent_matmul_precision(None)
    assert compose().precision == "ieee"


# Unknown and required keys


def test_a_misspelt_key_in_a_file_of_the_user_is_rejected_with_the_nearest_one(untypable):
    assert untypable("env.num_env", 4).startswith("Unknown configuration key 'env.num_env'. Did you mean env.num_envs")


def test_any_gymnasium_environment_without_its_id_is_rejected(rejected):
    error = rejected("env=gym")
    assert "'env.id'" in error
    assert "is required" in error
    assert "Give a value of that type" not in error


# Values of the wrong type


WRONG = (
    {"epochs": ["abc", 1.5], "encoder.sizes": [[1.0, 2.5], ["a"]], "total_frames": [math.inf, math.nan]}
    | {
        "seed": [True],
        "lr": ["abc", None],
        "env.num_envs": [None],
        "env.kwargs": [3],
        "cell": [None],
        "num_threads": [[2]],
    }
    | {"env.normalize_observation": ["perhaps"]}
)


@pytest.mark.parametrize(("key", "value"), [(key, each) for key in WRONG for each in WRONG[key]], ids=str)
def test_a_value_of_the_wrong_type_is_rejected_by_the_name_of_its_key(untypable, key, value):
    error = untypable(key, value)
    assert error.startswith(f"The configuration key '{key}")
    assert error.endswith("Give a value of that type.")
    assert ".. " not in error


@pytest.mark.parametrize(("key", "value"), [("env.mask", 3), ("env.packages", "popgym"), ("encoder.sizes", 8)], ids=str)
def test_one_value_where_a_list_belongs_is_rejected_with_how_a_list_is_written(untypable, key, value):
    error = untypable(key, value)
    assert error.startswith(f"The configuration key '{key}'")
    assert f"{key}=[" in error


def test_a_whole_number_may_be_written_as_a_decimal_or_with_an_exponent(compose):
    config = compose("total_frames=1e6", "num_threads=2.0", "seed=-0.0", "encoder.sizes=[64,32.0]", "lr=1")
    assert (config.total_frames, config.num_threads, config.seed, config.encoder.sizes) == (10**6, 2, 0, [64, 32])
    assert [type(each) for each in (config.total_frames, config.seed, config.lr)] == [int, int, float]


def test_a_value_of_the_wrong_type_is_rejected_at_the_command_line(rejected):
    assert rejected("epochs=abc") == (
        "The configuration key 'epochs': Value 'abc' of type 'str' could not be converted to Integer. "
        "Give a value of that type."
    )


@pytest.mark.parametrize("key", ["seed", "resume", "encoder.images", "env.id"])
def test_an_interpolation_of_a_key_that_does_not_exist_is_rejected(rejected, key):
    assert "'nonesuch'" in rejected(f"{key}=${{nonesuch}}")
