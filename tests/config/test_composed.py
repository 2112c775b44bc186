"""Conversion of a composed configuration to dataclasses, and errors for wrong keys and types."""

import json
import math
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from recurrl.config import MLPConfig, PPOConfig
from recurrl.config.collector import ReplayConfig
from recurrl.config.keys import keys_of
from recurrl.config.plugins import GROUPS, default_name
from recurrl.recurrent import set_recurrent_matmul_precision

# Valid configurations


def test_a_typed_configuration_is_plain_dataclasses_lists_and_dictionaries(compose):
    config = compose("+env.kwargs.sutton_barto_reward=true")
    of_env = json.loads(json.dumps(asdict(config)))["env"]  # which raises an error for OmegaConf's types
    assert (of_env["mask"], of_env["kwargs"]) == ([1, 3], {"sutton_barto_reward": True})


@pytest.mark.parametrize(("available", "device"), [(True, "cuda"), (False, "cpu")])
def test_an_automatic_device_is_the_gpu_where_there_is_one(compose, monkeypatch, available, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert compose("device=auto").device == device


def test_an_automatic_precision_is_that_of_the_package_and_not_of_an_earlier_job_of_a_sweep(compose, request):
    request.addfinalizer(lambda: torch.set_float32_matmul_precision("highest"))
    request.addfinalizer(lambda: set_recurrent_matmul_precision(None))
    assert compose().precision == "ieee"
    torch.set_float32_matmul_precision("medium")  # as a job with another precision does
    assert compose().precision == "ieee"
    set_recurrent_matmul_precision("bf16")
    assert compose().precision == "bf16"
    assert compose("precision=tf32").precision == "tf32"


# Unknown and required keys


def test_a_required_key_is_answered_with_the_default_choice_of_its_group(rejection):
    for key in ("env.id", "cell.num_layers", "algorithm.gamma", "collector.timeout_s", "encoder.sizes"):
        group = key.partition(".")[0]
        choice = "gym" if group == "env" else default_name(group)
        assert rejection({key: "???"}).endswith(f"with a line such as 'defaults: [{choice}, _self_]'.")
    assert rejection({"epochs": "???"}).endswith("Add epochs=... to the command line.")


# Values of the wrong type


CHOSEN = {"algorithm": PPOConfig, "buffer": ReplayConfig, "encoder": MLPConfig}
OF_DEFAULTS = keys_of(chosen=CHOSEN).keys() - {"env.source"}  # looked up first
PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([\w.]+)` \| .*? \| (.*?) \| .* \|$", PAGE, re.MULTILINE)
WORDS = {key: f"one of {text.replace('`', '')}" if "`" in text else text for key, text in ROWS if key in OF_DEFAULTS}
"""What the page of keys says that each key takes."""

WRONG = (
    {"epochs": ["abc", 1.5], "encoder.sizes": [[1.0, 2.5], ["a"]], "total_frames": [math.inf, math.nan]}
    | {"seed": [True], "lr": ["abc", None], "env.num_envs": [None], "env.kwargs": [3], "cell": [None]}
    | {"num_threads": [[2]], "env.normalize_observation": ["perhaps"]}
)


@pytest.mark.parametrize(("key", "value"), [(key, each) for key in WRONG for each in WRONG[key]], ids=str)
def test_a_value_of_the_wrong_type_is_rejected_by_the_name_of_its_key(rejection, key, value):
    error = rejection({key: value})
    shown = {"None": "null", "[2.5]": "[1.0, 2.5]"}.get(str(value), value)
    assert re.fullmatch(rf"{re.escape(key)} must be [^(]+ \(got {re.escape(str(shown))}\)\.", error)


OTHERS = {"a list": (3, "text"), "keys and": (3,), "true or false": (["x"], {"x": 1}, 0, 1, 2, 0.5)}
"""Values of other types, by the beginning of those words; a list or mapping is none of what the other keys take."""


@pytest.mark.parametrize(("key", "words"), sorted(WORDS.items()))
def test_a_value_of_the_wrong_type_is_rejected_in_the_words_of_the_page_of_keys(rejection, key, words):
    for value in next((OTHERS[beginning] for beginning in OTHERS if words.startswith(beginning)), (["x"], {"x": 1})):
        advice = f" Use {key}=[...], with commas between its values." if words.startswith("a list") else ""
        assert rejection({key: value}) == f"{key} must be {words} (got {value}).{advice}"


@pytest.mark.parametrize("key", sorted(key for key in WORDS if WORDS[key].startswith(("a list", "keys and"))))
def test_a_list_and_a_mapping_cannot_take_each_others_place(rejection, key):
    assert "has a value that cannot be used" in rejection({key: ["x"] if key == "env.kwargs" else {"x": 1}})


@pytest.mark.parametrize("key", ["env.source", *(f"{group}.name" for group in GROUPS)])
def test_a_name_that_is_no_text_or_names_nothing_is_rejected(rejection, key):
    for value in ({"x": 1}, ["x", "y"], "/proc/nope"):
        assert re.search("must be text|does not exist|has no effect without a custom yaml", rejection({key: value}))


def test_a_whole_number_may_be_written_as_a_decimal_or_with_an_exponent(compose):
    config = compose("total_frames=1e6", "num_threads=2.0", "seed=-0.0", "encoder.sizes=[64,32.0]", "lr=1")
    assert (config.total_frames, config.num_threads, config.seed, config.encoder.sizes) == (10**6, 2, 0, [64, 32])
    assert [type(each) for each in (config.total_frames, config.seed, config.lr)] == [int, int, float]


@pytest.mark.parametrize("key", ["seed", "resume", "encoder.images", "env.id"])
def test_an_interpolation_of_a_key_that_does_not_exist_is_rejected(rejected, key):
    assert "'nonesuch'" in rejected(f"{key}=${{nonesuch}}")
