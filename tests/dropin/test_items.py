"""Every item of TorchRL's documentation, counted: names, arguments, choices, keys, examples and statements.

Items of signatures are compared in test_signatures.py. An item that differs is in a table of docs/torchrl.md.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import typing
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import pytest
import torch
from test_documented import ATTRIBUTES, FIELDS, KINDS, Actor
from test_signatures import PAIRS, ROOT, listed, members, parameters
from torch import nn

SECTION = re.compile(r"^(Args|Keyword Args|Attributes|Methods|Returns|Examples)::?$", re.M)
STATEMENT = re.compile(r"^ *>>>.*\n?(?: *\.\.\. .*\n?)*", re.M)
NAMED = re.compile(r"^    (\w+(?:\[k\]\w*)?)(?: \(.*?\))?\s?: ", re.M)


class Docstring(NamedTuple):
    """What TorchRL's docstring of a class, one of its members or a function names and says."""

    owner: str
    member: str
    arguments: list[str]
    attributes: list[str]
    examples: list[str]
    statements: list[str]


def docstrings() -> Iterator[Docstring]:
    for owner in PAIRS:
        for member, (theirs, ours) in members(owner).items():
            if member and ours is theirs:  # inherited
                continue
            documented = getattr(theirs, "fget", None) or getattr(theirs, "__wrapped__", theirs)
            inherited = getattr(nn.Module, member, None) if member else None
            text = getattr(documented, "__doc__", None)
            if callable(documented) and text and text != getattr(inherited, "__doc__", None):
                yield parsed(owner, member, inspect.cleandoc(text))


def parsed(owner: str, member: str, text: str) -> Docstring:
    head, *rest = SECTION.split(text)
    sections = list(zip(rest[::2], rest[1::2], strict=True))
    named = {
        kind: [name for section, body in sections if section in kinds for name in NAMED.findall(body)]
        for kind, kinds in {"arguments": ("Args", "Keyword Args"), "attributes": ("Attributes", "Methods")}.items()
    }
    example = next((body for section, body in sections if section == "Examples"), "")
    examples = [re.sub(r"^ *(>>>|\.\.\.) ?", "", each, flags=re.M) for each in STATEMENT.findall(example)]
    prose = head
    for section, body in sections:
        if section == "Examples":  # what follows are outputs, or torch's documentation of the same
            break
        after = re.search(r"^\S", body, re.M)
        prose += "\n\n" + (body[after.start() :] if after else "")
    statements = [" ".join(part.split()) for part in re.split(r"\n\s*\n|\n(?=\s*- )", prose)]
    return Docstring(owner, member, **named, examples=examples, statements=[part for part in statements if part])


DOCSTRINGS = list(docstrings())
NAMES = [f"{each.owner}.{each.member}".rstrip(".") for each in DOCSTRINGS]


def instance(owner: str) -> Any:
    """One of ours, with everything that its documentation names."""
    cls = PAIRS[owner][1]
    if owner == "GRPOLoss":
        return cls(Actor())
    sizes = {"proj_size": 2} if owner in ("LSTM", "LSTMModule") else {}
    sizes |= {} if owner.endswith("Cell") else {"bidirectional": True}
    keys = {"in_key": "x", "out_key": "y"} if owner.endswith("Module") else {}
    return cls(3, 4, **sizes, **keys)


@pytest.mark.parametrize("each", DOCSTRINGS, ids=NAMES)
def test_documented_arguments_and_attributes_exist(each: Docstring) -> None:
    ours = members(each.owner)[each.member][1]
    accepted = set() if isinstance(ours, property) else set(parameters(ours)) | set(listed(each.owner))
    assert set(each.arguments) <= accepted
    for name in each.attributes:
        assert hasattr(instance(each.owner), name.replace("[k]", "0")), name


def choices() -> Iterator[tuple[str, str, Any]]:
    """The values that TorchRL documents for an argument."""
    for owner in ("GRUModule", "LSTMModule"):
        hints = get_type_hints(PAIRS[owner][0].__init__, {**vars(inspect.getmodule(PAIRS[owner][0])), **vars(typing)})
        for name, hint in hints.items():
            yield from ((owner, name, value) for value in get_args(hint) if get_origin(hint) is Literal)
    documented = inspect.getdoc(PAIRS["GRPOLoss"][0])
    assert documented is not None
    for name in ("aggregation", "reduction"):
        of_argument = re.search(rf"^    {name} .*?(?=^    \w)", documented, re.M | re.S)
        assert of_argument is not None
        yield from (("GRPOLoss", name, value) for value in dict.fromkeys(re.findall(r'"(\w+)"', of_argument[0])))


CHOICES = list(choices())


@pytest.mark.parametrize(("owner", "name", "value"), CHOICES)
def test_documented_choices_are_taken(owner: str, name: str, value: Any) -> None:
    cls = PAIRS[owner][1]
    if owner == "GRPOLoss":
        cls(Actor(), **{name: value})
        return
    backend = {"recurrent_backend": "scan"} if name == "recurrent_recompute" else {}
    module = cls(3, 4, in_key="x", out_key="y", **{**backend, name: value})
    assert getattr(module, name) == value


WITH_EXAMPLES = [each for each in DOCSTRINGS if each.examples]


@pytest.mark.parametrize("each", WITH_EXAMPLES, ids=lambda each: f"{each.owner}.{each.member}".rstrip("."))
def test_documented_examples_do_the_same(each: Docstring) -> None:
    """Statement by statement: what it prints, or the error that it raises. Weights are random, shapes are printed."""
    assert shown(each.examples, 1) == shown(each.examples, 0)


def shown(examples: list[str], side: int) -> list[str]:
    """What each statement of an example shows, with TorchRL's names (side 0) or ours (side 1)."""
    names = {name: pair[side] for name, pair in PAIRS.items()}
    scope: dict[str, Any] = {**names, "torch": torch}
    found = []
    for source in examples:
        torch.manual_seed(0)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            try:
                exec(compile(source, "<example>", "single"), scope)
            except Exception as error:
                output.write(type(error).__name__)
        scope |= {name: value for name, value in names.items() if name in scope}  # an import may have replaced it
        found.append(output.getvalue())
    return found


STATED = {
    # Of the plain modules and cells.
    "A PyTorch module for executing multiple steps": "test_whole_rows_equal_torch",
    "A gated recurrent unit .GRU. cell that performs": "test_a_cell_equals_torch",
    "A long short-term memory .LSTM. cell that performs": "test_a_cell_equals_torch",
    ".. note:: This class is implemented without relying on CuDNN": "test_the_plain_python_module_is_one_graph",
    # Of the modules.
    "An embedder for an": "test_every_public_torchrl_name_exists",
    "This class adds the following functionality": "test_outputs_states_and_gradients_equal_torchrls",
    "- Compatibility with TensorDict": "test_outputs_states_and_gradients_equal_torchrls",
    "- Optional multi-step execution": "test_a_sequence_equals_its_steps_one_by_one",
    "After construction, the module is .not. set": "test_members_equal_torchrls",
    "If in recurrent mode, it is expected": "test_a_sequence_needs_a_time_dimension",
    ".. note:: This class can handle multiple consecutive": "test_next_states_are_zero_except_at_segment_ends",
    ".. note:: This module relies on specific": "test_the_primer_adds_states_to_an_environment",
    "Transforms the ... layer in its python-based": "test_members_equal_torchrls",
    "Transforms the .... layer in its python-based": "test_members_equal_torchrls",
    "Transforms the .*CuDNN-based": "test_members_equal_torchrls",
    "Makes a tensordict primer": "test_the_primer_adds_states_to_an_environment",
    "A :class:`~torchrl.envs.TensorDictPrimer` object": "test_the_primer_adds_states_to_an_environment",
    "Not including a ``TensorDictPrimer``": "test_missing_states_are_zero",
    "When using batched environments": "test_the_primer_gives_an_environment_the_states",
    "See :func:`torchrl.modules.utils.get_primers": "test_the_primer_adds_states_to_an_environment",
    "Return TensorDict keys whose canonical": "test_canonicalizing_affects_only_the_modules_entries",
    "The result is the union of ``self.in_keys``": "test_members_equal_torchrls",
    "Canonicalize only": "test_canonicalizing_affects_only_the_modules_entries",
    "See :meth:`LSTMModule.canonicalize`": "test_canonicalizing_affects_only_the_modules_entries",
    "Equivalent to ``data.contiguous": "test_canonicalizing_affects_only_the_modules_entries",
    "Convenience wrapper around": "test_canonicalizing_affects_only_the_modules_entries",
    "Run the LSTM on a tensordict": "test_outputs_states_and_gradients_equal_torchrls",
    "Two execution paths": "test_outputs_states_and_gradients_equal_torchrls",
    "- ..Sequential.. .``recurrent_mode=False``": "test_a_step_zeroes_the_state_where_an_episode_starts",
    "- ..Recurrent.. .``recurrent_mode=True``": "test_a_backend_equals_torchrl",
    "``is_init`` is sourced from": "test_members_raise_what_torchrls_raise",
    # Of the mode and the precision.
    "Returns the current sampling type": "test_the_mode_is_torchrls_own",
    "Context manager for setting": "test_the_mode_is_torchrls_own",
    ".. note:: All of TorchRL methods": "test_the_mode_is_torchrls_own",
    "When to use which mode": "test_the_mode_is_torchrls_own",
    "- ..(Sequential|Recurrent).. .*``mode=": "test_the_mode_is_torchrls_own",
    "See the :ref:`Recurrent state lifecycle": "test_the_mode_is_torchrls_own",
    "Resolve the currently effective precision": "test_get_returns_the_mode_that_was_set",
    "Always returns one of": "test_a_preset_depends_on_the_device",
    "Set the process-global precision": "test_a_setting_overrides_the_environment_which_overrides_torch",
    "The setting is read at every triton": "test_a_setting_can_be_reset",
    # Of the loss.
    "GRPO loss": "test_losses_equal_torchrls",
    "The clipped importance weighted loss": "test_losses_equal_torchrls",
    "loss = -min": "test_the_loss_and_its_gradient_equal_the_formula",
    ".. note:: It is critical to keep your model in eval": "test_losses_equal_torchrls",
    ".. note:: The Effective Sample Size": "test_data_of_the_policy_itself_has_an_effective_sample_size_of_one",
    ".. note:: The masking_strategy": "masking_strategy",
    "The masking strategy must match": "masking_strategy",
    '- "(sft|rlhf|generic)"': "masking_strategy",
    r"GRPOLossOutput\(": "test_the_output_is_torchrls_class",
    "Maintains default values": "test_keys_can_be_set",
    "This class defines which tensordict keys": "test_keys_can_be_set",
    ".. note:: Parameters and buffers from the policy": "test_the_device_is_that_of_the_coefficients",
    ".. note:: For non-symmetric clipping": "test_losses_equal_torchrls",
    "Access the tensordict key configuration": "test_keys_can_be_set",
    "This property provides access": "test_keys_can_be_set",
    "- ``advantage``": "test_keys_can_be_set",
    "- ``(action|sample_log_prob|ref_log_probs)``": "default_keys",
    "To modify these keys": "test_keys_can_be_set",
}
"""The beginning of each statement of a docstring, and the test that holds it, or the rows of the docs that list it."""

STATEMENTS = [
    (each.owner, text) for each in DOCSTRINGS for text in each.statements if not text.startswith(".. seealso")
]


def test_every_documented_statement_is_held_by_a_test_or_listed() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    unused = set(STATED)
    for owner, text in STATEMENTS:
        starts = [start for start in STATED if re.match(start, text)]
        assert starts, f"TorchRL's documentation of {owner} says: {text}"
        unused -= set(starts)
        for name in (STATED[start] for start in starts):
            assert f"def {name}(" in sources or any(key.startswith(name) for key in listed(owner)), name
    assert not unused


def test_the_docs_say_how_many_items_were_compared() -> None:
    counts = {
        "names and members": sum(len(members(name)) for name in PAIRS),
        "parameters": len(signatures()),
        "documented arguments and attributes": sum(len({*d.arguments, *d.attributes}) for d in DOCSTRINGS),
        "choices": len(CHOICES),
        "keys and outputs": len(KINDS) * len(ATTRIBUTES) + len(FIELDS),
        "lines of examples": sum(len(each.examples) for each in DOCSTRINGS),
        "statements": len(STATEMENTS),
    }
    said = f"{sum(counts.values())} items: " + ", ".join(f"{count} {kind}" for kind, count in counts.items())
    assert said in " ".join((ROOT / "docs/torchrl.md").read_text(encoding="utf-8").split())


def signatures() -> list[tuple[str, str, str]]:
    """Each parameter of each public function."""
    return [
        (owner, member, name)
        for owner in PAIRS
        for member, (theirs, _) in members(owner).items()
        if callable(theirs)
        for name in parameters(theirs)
    ]
