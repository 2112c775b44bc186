"""The dotted keys of configurations: those of the schema, those that were meant, and those that differ."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from recurrl.config import TrainConfig
from recurrl.config.keys import differences, key_paths, typed_value


def test_the_yaml_files_give_a_value_to_each_key_of_the_schema_and_to_no_other(untyped_defaults):
    def paths(values, prefix=""):
        for key, value in values.items():
            yield prefix + key
            if isinstance(value, dict) and prefix + key != "env.kwargs":
                yield from paths(value, f"{prefix}{key}.")

    assert set(paths(OmegaConf.to_container(untyped_defaults))) == set(key_paths(TrainConfig))


def test_the_value_behind_a_dotted_key_is_that_of_its_group(defaults):
    assert typed_value(defaults, "seed") == defaults.seed
    assert typed_value(defaults, "cell.hidden_size") == defaults.cell.hidden_size


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["minibatch_slice=4"],
            "Unknown configuration key 'minibatch_slice'. Did you mean minibatch_slices?",
        ),
        (["env.num_env=4"], "Unknown configuration key 'env.num_env'. Did you mean env.num_envs"),
        (["hidden_size=8"], "Unknown configuration key 'hidden_size'. Did you mean cell.hidden_size?"),
        (["+gama=0.9"], "Unknown configuration key 'gama'. Did you mean algorithm.gamma"),
        (["++xyzzy=1"], "Unknown configuration key 'xyzzy'. recurrl-train --cfg job lists all keys."),
        (["-m", "sed=0,1"], "Unknown configuration key 'sed'. Did you mean seed?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_key_that_does_not_exist_is_refused_with_the_nearest_one(refused, overrides, sentence):
    assert refused(*overrides).startswith(sentence)


def test_the_keys_in_which_two_configurations_differ_are_dotted_and_have_both_values():
    before = {"seed": 0, "env": {"id": "A", "kwargs": {"x": 1}}, "old": 3}
    after = {"seed": 0, "env": {"id": "B", "kwargs": {"x": 2}}, "new": 4}
    assert differences(before, after) == {
        "env.id": ("A", "B"),
        "env.kwargs.x": (1, 2),
        "old": (3, None),
        "new": (None, 4),
    }
    assert differences(before, before) == {}
