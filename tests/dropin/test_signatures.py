"""Signatures and members are TorchRL's, except for what docs/torchrl.md lists."""

import ast
import inspect
import re
from pathlib import Path

import pytest
import torchrl.modules
import torchrl.objectives.llm

import recurrl.losses
import recurrl.recurrent

ROOT = Path(__file__).parents[2]
SECTIONS = (ROOT / "docs/torchrl.md").read_text(encoding="utf-8").split("\n## ")
NAMES = [name for name in recurrl.recurrent.__all__ if hasattr(torchrl.modules, name)]
PAIRS = {
    **{name: (getattr(torchrl.modules, name), getattr(recurrl.recurrent, name)) for name in NAMES},
    "GRPOLoss": (torchrl.objectives.llm.GRPOLoss, recurrl.losses.GRPOLoss),
}
ABSENT = "–"
IN_WORDS = ("a method", "ignored", "ignored (in `kwargs`)", "required")


def rows(section):
    text = next(text for text in SECTIONS if text.startswith(section))
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def listed(name):
    """The table's rows of one class or function: both sides by parameter or member."""
    of_name = [row for row in rows("Signatures") if f"`{name}`" in row[0]]
    assert all(len(row) == 5 and row[4] for row in of_name), "each row needs a reason"
    return {row[1].strip("`"): (row[2].strip("`"), row[3].strip("`")) for row in of_name}


def parameters(function):
    return {name: p.default for name, p in inspect.signature(function).parameters.items() if name != "self"}


def members(name):
    """The class or function itself and its public functions, by name; None where ours is missing."""
    theirs, ours = PAIRS[name]
    both = {"": (theirs, ours)}
    if inspect.isclass(theirs):
        own = {key for cls in theirs.__mro__ if cls.__module__.startswith("torchrl") for key in vars(cls)}
        for key in sorted(own):
            name = key.replace("_AcceptedKeys", "default_keys")
            if not name.startswith("_"):
                both[name] = inspect.getattr_static(theirs, key), inspect.getattr_static(ours, key, None)
    return both


def differences(name):
    """The differences: both sides by parameter, ``member.parameter`` or member; ``ABSENT`` where one side lacks it."""
    differing = {}
    for member, (theirs, ours) in members(name).items():
        if ours is None and theirs is not None:
            differing[member] = theirs, ABSENT
        # forward is dispatched by its in_keys, whose tensors it also takes by name.
        elif ours is not theirs and callable(theirs) and not isinstance(ours, property) and member != "forward":
            a, b = parameters(theirs), parameters(ours)
            for key in {**a, **b}:
                if key not in a or key not in b or a[key] != b[key]:
                    differing[".".join(filter(None, (member, key)))] = a.get(key, ABSENT), b.get(key, ABSENT)
    return differing


@pytest.mark.parametrize("name", PAIRS)
def test_signatures_and_members_differ_as_listed(name):
    differing, table = differences(name), listed(name)
    assert set(differing) == set(table)
    for key, values in differing.items():
        for value, text in zip(values, table[key], strict=True):
            if text not in IN_WORDS:
                assert value == (ABSENT if text == ABSENT else ast.literal_eval(text))


def test_the_order_of_positional_parameters_is_torchrls():
    for name, (theirs, ours) in PAIRS.items():
        sides = [inspect.signature(side).parameters.values() for side in (theirs, ours)]
        positional = [[p.name for p in side if p.kind == p.POSITIONAL_OR_KEYWORD] for side in sides]
        assert positional[0] == positional[1], name


def test_every_difference_in_behaviour_has_a_test():
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for row in rows("Behaviour"):
        assert re.search(rf"def {row[4].strip('`')}\(", sources), row


def test_the_table_names_only_what_is_compared():
    named = {name for row in rows("Signatures") for name in re.findall(r"`(\w+)`", row[0])}
    assert named <= set(PAIRS)
