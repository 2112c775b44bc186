"""State policies: which are fine, and what burn-in needs."""

from __future__ import annotations

import pytest
from changes import changed

BURN_IN = {"state": "burn_in", "burn_in_len": 4, "slice_len": 8, "minibatch_slices": 8}


@pytest.mark.parametrize("changes", [{"state": "zero"}, {"state": "refresh"}, BURN_IN], ids=changed)
def test_a_state_policy_is_fine(checked, changes):
    checked(changes)


@pytest.mark.parametrize("state", ["zero", "refresh", "burn_in"])
def test_a_state_policy_is_refused_for_a_policy_without_states(refusal, state):
    assert refusal({**BURN_IN, "state": state, "cell.name": "none"}) == (
        f"state={state} concerns recurrent states, but cell=none has none. Leave state out, or choose a cell."
    )


@pytest.mark.parametrize("state", ["stored", "zero", "refresh"])
def test_a_burn_in_length_is_refused_with_another_state_policy(refusal, state):
    assert refusal({"state": state, "burn_in_len": 4}) == (
        "burn_in_len=4 has no effect here: it goes with state=burn_in. Leave it out, or choose state=burn_in."
    )


def test_burning_in_is_refused_without_a_length(refusal):
    assert refusal({**BURN_IN, "burn_in_len": None}) == (
        "state=burn_in needs burn_in_len, the number of warm-up steps before a slice. Give burn_in_len=4, for example."
    )


@pytest.mark.parametrize("length", [8, 9])
def test_a_burn_in_as_long_as_a_slice_is_refused(refusal, length):
    assert refusal({**BURN_IN, "burn_in_len": length}).startswith(
        f"burn_in_len={length} is not less than slice_len=8: burn-in steps come from the preceding slice."
    )


def test_burning_in_is_refused_where_a_slice_is_a_whole_row(refusal):
    assert refusal({**BURN_IN, "slice_len": 32}).startswith(
        "state=burn_in has no burn-in steps with slice_len=32, a whole row: no slice has steps before it."
    )
