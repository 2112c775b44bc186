"""The dotted keys of configurations: those of the schema, suggestions for unknown ones, and differences."""

from dataclasses import is_dataclass

import pytest
from omegaconf import OmegaConf
from rejections import error_of

from recurrl.config.composed import chosen_options
from recurrl.config.keys import FREE, check_key, differences, flat, keys_of, packaged_keys
from recurrl.config.plugins import GROUPS, PACKAGED_OPTIONS, choice_names, options_class


@pytest.mark.parametrize("group", GROUPS)
def test_the_yamls_of_a_group_give_a_value_to_each_of_its_keys_and_to_no_others(compose_untyped, group):
    for name in [] if group == "env" else choice_names(group):
        composed = compose_untyped(f"{group}={name}")
        known = {key for key, (kind, _) in keys_of(chosen=chosen_options(composed)).items() if not is_dataclass(kind)}
        assert {*flat(OmegaConf.to_container(composed)), FREE} == known


UNKNOWN = [
    (("++xyzzy=1",), "Unknown configuration key 'xyzzy'. recurrl-train --cfg job lists all keys."),
    (
        ("cell.xyzzy=1",),
        "Unknown configuration key 'cell.xyzzy'. cell has: hidden_size, num_layers. recurrl-train --cfg job "
        "cell=... lists those of a choice.",
    ),
    (("-m", "sed=0,1"), "Unknown configuration key 'sed'. Did you mean seed?"),
    (("callbacks=mine:Stop",), "callbacks are passed to recurrl.train, in Python, and have no key."),
]


@pytest.mark.parametrize(("overrides", "error"), UNKNOWN)
def test_an_unknown_key_is_rejected_with_the_nearest_one_or_how_to_list_them(rejected, overrides, error):
    assert rejected(*overrides) == error


WRONG_KEYS = [
    *(("minibatch_slice", "minibatch_slices"), ("env.num_env", "env.num_envs"), ("evn.num_envs", "env.num_envs")),
    *(("hidden_size", "cell.hidden_size"), ("n_layers", "cell.num_layers"), ("algorithm.lr", "lr")),
    *(("entropy", "algorithm.entropy_coeff"), ("id", "env.id or logger.id"), ("track", "logger")),
    *(("gama", "algorithm.gamma"), ("timeout", "collector.timeout_s or ranks.timeout_s")),
    *(("n_steps", "frames_per_batch, which is n_steps × env.num_envs"), ("save_freq", "checkpoint.every_frames")),
    *((far, None) for far in ("tracks", "name", "verbose", "gpu", "n", "save_all", "log_interval", "anneal_lr")),
    *((far, None) for far in ("encoder.dropout", "env.render_mode", "encoder.nonlinearity", "cell.dropout")),
    *((far, None) for far in ("env.kwarg.size", "logger.sizes_of", "capture_video", "torch_deterministic")),
]


@pytest.mark.parametrize(("key", "hint"), WRONG_KEYS)
def test_a_wrong_key_is_answered_with_a_near_one_or_none(key, hint):
    assert error_of(check_key, key, packaged_keys()).partition("Did you mean ")[2].removesuffix("?") == (hint or "")


@pytest.mark.parametrize("group", [group for group in GROUPS if group != "env"])
def test_an_option_of_another_choice_is_rejected_with_its_owners(group):
    packaged = {name: keys_of(options, f"{group}.") for name, options in PACKAGED_OPTIONS[group].items()}
    for name in choice_names(group):
        known = keys_of(chosen={group: options_class(group, name)})
        for key in set().union(*packaged.values()) - known.keys():
            owners = " or ".join(owner for owner, its_own in packaged.items() if key in its_own)
            error = f"{key} is an option of {group}={owners}, but this run has another {group}. Leave it out, or "
            assert error_of(check_key, key, known).startswith(f"{error}choose {group}={owners}. ")


def test_the_differences_of_two_configurations_have_dotted_keys_and_both_values():
    before = {"seed": 0, "env": {"id": "A", "kwargs": {"x": 1}}, "old": 3}
    after = {"seed": 0, "env": {"id": "B", "kwargs": {"x": 2}}, "new": 4}
    expected = {"env.id": ("A", "B"), "env.kwargs.x": (1, 2), "old": (3, "absent"), "new": ("absent", 4)}
    assert differences(before, after) == expected
    assert differences(before, before) == {}
    assert differences({"resume": None}, {}) == {}  # a run of an earlier version did not have the option
