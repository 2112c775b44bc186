"""The dotted keys of configurations: those of the schema, suggestions for unknown ones, and differences."""

import pytest
from omegaconf import OmegaConf

from recurrl.config.composed import chosen_options, paths_of
from recurrl.config.keys import check_key, differences, key_paths
from recurrl.config.plugins import GROUPS, PACKAGES, names, options_class, packaged
from recurrl.errors import ConfigError

OF_ANOTHER_CHOICE = [
    (group, owner, key)
    for group in PACKAGES
    if group != "env"
    for owner, options in packaged(group).items()
    for key in key_paths(options, f"{group}.")
    if any(key not in key_paths(options_class(group, other), f"{group}.") for other in names(group))
]


@pytest.mark.parametrize("group", GROUPS)
def test_the_yamls_of_a_group_give_a_value_to_each_of_its_keys_and_to_no_others(compose_untyped, group):
    for name in [] if group == "env" else names(group):
        composed = compose_untyped(f"{group}={name}")
        known = key_paths(chosen=chosen_options(composed))
        assert set(paths_of(OmegaConf.to_container(composed), known)) == set(known)


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["minibatch_slice=4"], "Unknown configuration key 'minibatch_slice'. Did you mean minibatch_slices?"),
        (["env.num_env=4"], "Unknown configuration key 'env.num_env'. Did you mean env.num_envs"),
        (["hidden_size=8"], "Unknown configuration key 'hidden_size'. Did you mean cell.hidden_size?"),
        (["+gama=0.9"], "Unknown configuration key 'gama'. Did you mean algorithm.gamma"),
        (["++xyzzy=1"], "Unknown configuration key 'xyzzy'. recurrl-train --help all lists all keys."),
        (["cell.xyzzy=1"], "Unknown configuration key 'cell.xyzzy'. cell has: hidden_size, name, num_layers."),
        (["-m", "sed=0,1"], "Unknown configuration key 'sed'. Did you mean seed?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_unknown_key_is_rejected_with_the_nearest_one(refused, overrides, error):
    assert refused(*overrides).startswith(error)


@pytest.mark.parametrize(("group", "owner", "key"), OF_ANOTHER_CHOICE)
def test_an_option_of_another_choice_is_rejected_with_its_owners(group, owner, key):
    owners = " or ".join(name for name, options in packaged(group).items() if key in key_paths(options, f"{group}."))
    assert owner in owners.split(" or ")
    other = next(name for name in names(group) if key not in key_paths(options_class(group, name), f"{group}."))
    with pytest.raises(ConfigError) as caught:
        check_key(key, key_paths(chosen={group: options_class(group, other)}))
    assert str(caught.value) == (
        f"{key} is an option of {group}={owners}, but this run has another {group}. Leave it out, or choose "
        f"{group}={owners}."
    )


def test_an_option_of_another_choice_is_rejected_on_the_command_line(refused):
    assert refused("algorithm=grpo", "algorithm.lmbda=0.9").startswith("algorithm.lmbda is an option of algorithm=ppo,")
    assert refused("logger.mode=offline").startswith("logger.mode is an option of logger=wandb,")


def test_the_differences_of_two_configurations_have_dotted_keys_and_both_values():
    before = {"seed": 0, "env": {"id": "A", "kwargs": {"x": 1}}, "old": 3}
    after = {"seed": 0, "env": {"id": "B", "kwargs": {"x": 2}}, "new": 4}
    assert differences(before, after) == {
        "env.id": ("A", "B"),
        "env.kwargs.x": (1, 2),
        "old": (3, None),
        "new": (None, 4),
    }
    assert differences(before, before) == {}
