"""Errors addressed to the user."""

from recurrl.errors import message_of


def test_what_an_error_of_others_says_is_one_line():
    assert message_of(ValueError("It\n  broke.\n")) == "It broke"
    assert message_of(KeyError()) == "KeyError"
    assert len(message_of(ValueError("x" * 10_000))) == 500
