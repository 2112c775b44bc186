"""Every key of the configuration does something, or an explicit value of it is rejected."""

import random
from collections import Counter
from contextlib import suppress
from itertools import combinations

import pytest
from every_key import EVENTS, SLOW, TINY, changed, keys, levels, observed, others
from every_key_env import KINDS
from omegaconf import OmegaConf
from slow_cases import slow

from recurrl.config.cell import NO_CELL
from recurrl.config.composed import typed
from recurrl.config.keys import keys_of
from recurrl.config.plugins import choice_names, default_name, yaml_names, yaml_values
from recurrl.errors import ConfigError
from recurrl.validation import check_config

SHOWN, REJECTED, ALONE, SILENT = "shown", "rejected", "the only choice", "silent"


class Trial:
    """Runs of one choice of groups, and of these with one key changed.

    Args:
        composed: the configuration.
        folder: of the runs.
    """

    def __init__(self, composed, folder):
        self.composed, self.folder = composed, folder
        self._bases = {}

    def base(self, event=""):
        """The configuration in which an event happens, what its run shows, and what changes from run to run."""
        composed = self.composed
        for key, value in EVENTS.get(event, {}).items():
            composed = changed(composed, key, {**composed.env.kwargs, **value} if key == "env.kwargs" else value)
        if event not in self._bases:
            first, second = (observed(composed, self.folder) for _ in range(2))
            assert "rejected" not in first, (first, OmegaConf.to_container(composed))
            assert event or "error" not in first, first
            self._bases[event] = first, {name for name in {**first, **second} if first.get(name) != second.get(name)}
        return composed, *self._bases[event]

    def outcome(self, composed, key, event=""):
        """What comes of a configuration in which a key has another value."""
        _, base, random_names = self.base(event)
        seen = observed(composed, self.folder, explicit=(key,))
        if "rejected" in seen:
            return REJECTED
        shown = any(seen.get(name) != base.get(name) for name in {**seen, **base}.keys() - random_names)
        return SHOWN if shown else SILENT

    def outcome_of_all(self, key, kind, meaning):
        """What comes of all other values of a key."""
        event, outcomes = key if key in EVENTS else "", set()
        composed, *_ = self.base(event)
        for value in others(key, kind, meaning, OmegaConf.select(composed, key)):
            outcomes.add(self.outcome(changed(composed, key, value), key, event))
            if SHOWN in outcomes:
                return SHOWN
        return SILENT if SILENT in outcomes else REJECTED if outcomes else ALONE


def in_every_pair(compose, folder):
    """Configurations that together have every legal pair of choices, with some of the other values drawn at random."""
    drawn = random.Random(0)
    own = ("env=gym", "env.id=Kind-v0", "env.packages=[every_key_env]")
    made = {kind: compose(*TINY, *own, f"+env.kwargs.kind={kind}") for kind in KINDS}
    made["memory"] = compose(*TINY, "env=repeat_previous_torch")
    varied = ("cell", "backend", "algorithm", "buffer")
    usual_names = {group: default_name(group) for group in varied} | {"recompute": "none", "precision": "auto"}
    groups = {"env": list(made)}
    groups |= {group: [name for name in choice_names(group) if name not in SLOW.get(group, ())] for group in varied}
    groups |= {key: list(keys_of()[key][1].choices) for key in ("recompute", "precision")}
    key_of = {group: f"{group}.name" if group in varied else group for group in usual_names}

    def composed(choice):
        result = made[choice["env"]]
        for group, key in key_of.items():
            result = changed(result, key, choice[group])
        if choice["algorithm"] == "distill":
            result = changed(result, "algorithm.teacher", "every_key_env:teacher")
            result = changed(result, "algorithm.critic_observation", ["privileged"] * (choice["env"] == "memory"))
        return changed(result, "algorithm.group_size", 2) if choice["algorithm"] == "grpo" else result

    def draft_with(pair):
        choice = {group: drawn.choice(of) for group, of in groups.items()} | pair
        # Without a cell these have no effect, and are rejected if they are explicit.
        usual = ("backend", "recompute", "precision") if choice["cell"] == NO_CELL else ()
        return choice | {group: usual_names[group] for group in usual if group not in pair}

    missing = {((a, x), (b, y)) for a, b in combinations(groups, 2) for x in groups[a] for y in groups[b]}
    for pair in sorted(missing):
        drafts = [draft_with(dict(pair)) for _ in range(12)]
        drafts.sort(key=lambda draft: -len(missing & set(combinations(draft.items(), 2))))
        for draft in drafts if pair in missing else ():
            candidate = composed(draft)
            explicit = [key for group, key in key_of.items() if draft[group] != usual_names[group]]
            if "rejected" not in observed(candidate, folder, explicit):
                missing -= set(combinations(draft.items(), 2))
                variant = _varied(candidate, drawn)
                # What an environment lacks, such as a mask of actions, shows in its run only. So does a policy that
                # collapses in the first update, after which schedules and clip ranges change nothing.
                steps = observed(variant, folder).get("1/optim/steps")
                yield ", ".join(draft.values()), variant if float(steps or 0) else candidate
                break


def _varied(composed, drawn):
    """A configuration with other values of some of the keys that may decide whether others matter."""
    for key, kind, meaning in keys(composed):
        choices = levels(key, kind, meaning, OmegaConf.select(composed, key))
        if choices and drawn.random() < 0.3:
            varied = changed(composed, key, drawn.choice(choices))
            with suppress(ConfigError):
                check_config(typed(varied), ())
                composed = varied
    return composed


def judged(trials, folder, *prefixes):
    """How many keys of configurations do what, and the silent ones."""
    counts, silent = Counter(), []
    for name, composed in trials:
        counts["configurations"] += 1
        trial, all_keys = Trial(composed, folder / "run"), keys(composed)
        known = {key for key, _, _ in all_keys} - ({"env.kwargs"} if composed.env.id != "Kind-v0" else set())
        for key, kind, meaning in all_keys:
            if key.startswith(prefixes or "") and EVENTS.get(key, {}).keys() <= known:
                outcome = trial.outcome_of_all(key, kind, meaning)
                counts[outcome] += 1
                if outcome == SILENT:
                    silent.append(f"{name}: {key}")
    return counts, silent


OF_SPACES = ("env.normalize_observation", "env.mask", "env.previous_", "encoder.", "policy.")
OF_CHOICES = [
    ("cell=gru", ("algorithm.", "encoder.", "policy."), {SHOWN: 10, REJECTED: 5}),
    *(slow(f"collector={name}", ("collector.",), {SHOWN: 1}) for name in ("multi_sync", "multi_async")),
    *(slow(f"logger={name}", ("logger.",), {SHOWN: 1}) for name in ("tensorboard", "wandb")),
    slow("backend=triton", ("cell.", "backend.", "recompute", "precision"), {SHOWN: 1}),
    *(slow(f"env={env}", OF_SPACES, {}) for env in yaml_names("env") if yaml_values("env", env)["id"] != "???"),
]
"""A choice, the beginnings of its keys, and at least how many of these do what."""


@pytest.mark.parametrize(("choice", "prefixes", "least"), OF_CHOICES)
def test_no_key_of_a_choice_is_silent(compose_untyped, tmp_path, monkeypatch, choice, prefixes, least):
    monkeypatch.setenv("WANDB_MODE", "offline")
    counts, silent = judged([(choice, compose_untyped(*TINY, choice))], tmp_path, *prefixes)
    assert not silent
    assert Counter(least) <= counts


@pytest.mark.slow
def test_no_key_is_silent_with_any_pair_of_choices(compose_untyped, tmp_path):
    trials = list(in_every_pair(compose_untyped, tmp_path / "run"))
    tried = {choice for name, _ in trials for choice in name.split(", ")}
    for group in ("cell", "backend", "algorithm", "buffer"):
        assert set(choice_names(group)) - set(SLOW.get(group, ())) <= tried
    assert "full" in tried
    counts, silent = judged(trials, tmp_path)
    assert counts["configurations"] >= 15
    assert counts[SHOWN] > 50 * counts["configurations"]
    assert not silent
