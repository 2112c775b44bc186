"""When warnings are due. ``tests/cli/test_not_learning.py`` has runs that fail in each way."""

import json
import math
import re
from pathlib import Path

import pytest

from recurrl.callbacks import diagnosis
from recurrl.config import keys, plugins

DOCS = Path(__file__).parents[2] / "docs" / "not-learning.md"
HEALTHY = (
    {"policy/entropy": 1.0, "advantage/std": 0.5, "optim/grad_norm": 0.3, "optim/steps": 8.0, "optim/signal": 0.2}
    | {"value/target_mean": 3.0, "value/target_std": 1.0, "value/explained_variance": 0.8}
    | {"train/return_mean": 10.0, "train/return_std": 2.0, "train/episodes": 100.0}
    | {"train/episode_length_mean": 20.0, "train/truncated_fraction": 0.5}
)
ILL = {
    diagnosis.ENTROPY: {"policy/entropy": 0.01},
    diagnosis.ADVANTAGES: {"advantage/std": 0.039},
    diagnosis.GRADIENTS: {"optim/grad_norm": 0.0004},
    diagnosis.CRITIC: {"value/explained_variance": -0.3},
    diagnosis.NOISE: {"optim/signal": 0.01},
    diagnosis.TRUNCATED: {"train/truncated_fraction": 1.0},
}
EVALUATED = {"eval/return_mean": 12.0, "eval/return_std": 4.0, "eval/episodes": 20.0}
ACTED_AT_RANDOM = {"eval/return_mean_random": 2.0, "eval/return_std_random": 4.0}
NO_BETTER = EVALUATED | ACTED_AT_RANDOM | {"eval/return_mean": 2.0, "train/return_mean": 2.0}


def make_diagnosis(iterations=40, continuous=0, initial_std=1.0):
    return diagnosis.Diagnosis(iterations, max_grad_norm=0.5, continuous=continuous, initial_std=initial_std)


def titles(warnings):
    return [title for title in diagnosis.WARNINGS for line in warnings if line.startswith(f"{title}: ")]


def warned(metrics, iterations=diagnosis.MIN_ITERATIONS, of=None):
    """The titles of what is due in each of several iterations with the same metrics."""
    of = of or make_diagnosis()
    return [titles(of.update(metrics)) for _ in range(iterations)]


def test_nothing_is_wrong_with_a_healthy_run():
    assert not any(warned(HEALTHY, 48))


@pytest.mark.parametrize("title", ILL)
def test_a_warning_is_due_once_and_after_enough_iterations(title):
    history = warned(HEALTHY | ILL[title], 30)
    assert [number for number, due in enumerate(history, start=1) if due == [title]] == [diagnosis.MIN_ITERATIONS]
    assert sum(map(len, history)) == 1


@pytest.mark.parametrize("title", ILL)
def test_in_a_long_run_it_is_due_after_a_half_or_at_the_end_after_a_quarter(title):
    of, ill = make_diagnosis(iterations=200), HEALTHY | ILL[title]
    at_the_end = ill | NO_BETTER
    for iteration in range(1, 110):
        assert titles(of.update(ill)) == ([title] if iteration == 100 else [])
        assert list(of.warnings(at_the_end)) == ([diagnosis.RANDOM, title] if iteration >= 50 else [diagnosis.RANDOM])


@pytest.mark.parametrize("title", sorted(set(ILL) - {diagnosis.CRITIC}))
def test_an_iteration_in_which_it_does_not_hold_starts_the_count_again(title):
    of, ill = make_diagnosis(), HEALTHY | ILL[title]
    assert not any([*warned(ill, 19, of), *warned(HEALTHY, 1, of), *warned(ill, 19, of)])
    assert warned(ill, 1, of) == [[title]]


def test_a_critic_may_explain_something_by_chance_in_a_tenth_of_the_iterations():
    of, useless = make_diagnosis(), HEALTHY | ILL[diagnosis.CRITIC]
    assert not any([*warned(useless, 12, of), *warned(HEALTHY, 1, of)])
    assert [diagnosis.CRITIC] in warned(useless, 10, of)
    of = make_diagnosis()
    assert not any(due for _ in range(6) for due in (*warned(useless, 6, of), *warned(HEALTHY, 1, of)))


@pytest.mark.parametrize("title", ILL)
def test_a_policy_that_has_learnt_is_not_warned_about(title):
    of = make_diagnosis()
    learned = HEALTHY | {"train/return_mean": 11.0, "train/episodes": 500.0}  # standard error 0.28
    warned(HEALTHY, 1, of)
    assert not any(warned(learned | ILL[title], 30, of))
    # Until returns fall back to what they were at first.
    assert warned(HEALTHY | ILL[title] | {"train/return_mean": 10.5}, 1, of) == [[title]]


def test_returns_that_differ_by_rounding_alone_have_not_improved():
    of, same = make_diagnosis(), {"train/return_mean": 8.1, "train/return_std": 0.0}
    metrics = HEALTHY | ILL[diagnosis.ADVANTAGES] | same
    warned(metrics, 19, of)
    assert warned(metrics | {"train/return_mean": math.nextafter(8.1, 9.0)}, 1, of) == [[diagnosis.ADVANTAGES]]


def test_without_episodes_nothing_is_known():
    nan = {name: math.nan for name in HEALTHY if name.startswith("train/")}
    metrics = HEALTHY | nan | {"train/episodes": 0.0} | ILL[diagnosis.ENTROPY]
    of = make_diagnosis()
    assert not any(warned(metrics, 30, of))
    ended = metrics | {**EVALUATED, **ACTED_AT_RANDOM, "eval/return_mean": 2.0}
    assert "with returns of nan ± nan, at first nan ± nan." in of.warnings(ended)[diagnosis.ENTROPY]


@pytest.mark.parametrize(("mean", "no_better"), [(9.0, True), (11.2, True), (11.3, False), (12.0, False)])
def test_better_than_random_is_by_more_than_a_standard_error_of_the_difference(mean, no_better):
    random = ACTED_AT_RANDOM | {"eval/return_mean_random": 10.0}  # the standard error is 1.26; that of training 0.92
    warnings = make_diagnosis().warnings(HEALTHY | EVALUATED | random | {"eval/return_mean": mean})
    assert list(warnings) == ([diagnosis.RANDOM] if no_better else [])


@pytest.mark.parametrize("better", [True, False])
@pytest.mark.parametrize("improved", [True, False])
def test_after_the_evaluation_of_random_actions_they_decide(better, improved):
    of = make_diagnosis()
    warned(HEALTHY, 1, of)
    metrics = HEALTHY | ILL[diagnosis.ENTROPY] | ({"train/return_mean": 20.0} if improved else {})
    warned(metrics, 20, of)
    assert list(of.warnings(metrics)) == ([] if improved else [diagnosis.ENTROPY])
    assert list(of.warnings(metrics | EVALUATED)) == ([] if improved else [diagnosis.ENTROPY])
    metrics |= EVALUATED | ACTED_AT_RANDOM | {"train/return_mean": 12.0} if better else NO_BETTER
    assert list(of.warnings(metrics)) == ([] if better else [diagnosis.RANDOM, diagnosis.ENTROPY])


WITHOUT_MEMORY = [(12.0, 12.0, True), (11.6, 13.0, True), (11.4, 12.0, False), (12.0, 11.4, False), (2.0, 2.0, False)]


@pytest.mark.parametrize(("zeroed", "shuffled", "unused"), WITHOUT_MEMORY)
def test_memory_is_of_use_if_a_twentieth_of_what_was_learnt_is_lost_without_it(zeroed, shuffled, unused):
    without = {"eval/return_mean_zeroed_state": zeroed, "eval/return_mean_shuffled_state": shuffled}
    warnings = make_diagnosis().warnings(HEALTHY | EVALUATED | ACTED_AT_RANDOM | without)
    assert list(warnings) == ([diagnosis.MEMORY] if unused else [])


LOSSES = [(12.0, 2.0, False), (13.8, 2.0, False), (14.7, 2.0, True), (14.7, -10.0, False), (math.nan, 2.0, False)]


@pytest.mark.parametrize(("trained", "random", "better"), LOSSES)
def test_sampled_actions_are_better_if_a_fifth_of_their_gain_is_lost_without(trained, random, better):
    metrics = EVALUATED | {"train/return_mean": trained, "eval/return_mean_random": random}  # two errors are 1.83
    warnings = make_diagnosis().warnings(HEALTHY | ACTED_AT_RANDOM | metrics)
    assert list(warnings) == ([diagnosis.SAMPLED] if better else [])


ENTROPIES = [
    (0, 1.0, 0.03, False),
    (1, 1.0, -1.0, False),  # a standard deviation of 0.09
    (1, 1.0, -2.6, True),  # of 0.018
    (1, 0.1, -2.6, False),
    (3, 1.0, -2.6, False),
    (3, 1.0, -7.8, True),
]


@pytest.mark.parametrize(("continuous", "initial_std", "entropy", "gone"), ENTROPIES)
def test_the_entropy_of_continuous_actions_is_gone_with_their_deviation(continuous, initial_std, entropy, gone):
    of = make_diagnosis(continuous=continuous, initial_std=initial_std)
    assert ([diagnosis.ENTROPY] in warned(HEALTHY | {"policy/entropy": entropy}, of=of)) == gone


def test_iterations_without_a_gradient_step_count_as_without_a_gradient():
    metrics = {name: value for name, value in HEALTHY.items() if name.startswith("train/")} | {"optim/steps": 0.0}
    assert warned(metrics)[-1] == [diagnosis.GRADIENTS]


def test_an_algorithm_need_not_have_a_critic_or_an_entropy():
    names = ("train/", "optim/")
    assert not any(warned({name: value for name, value in HEALTHY.items() if name.startswith(names)}, 48))


def test_a_resumed_run_warns_like_one_that_was_not_interrupted():
    better, critic = {"train/return_mean": 12.0}, ILL[diagnosis.CRITIC]
    phases = (better, ILL[diagnosis.ADVANTAGES], critic | ILL[diagnosis.TRUNCATED], critic | ILL[diagnosis.ENTROPY])
    run = [HEALTHY | phase for phase, count in zip(phases, (1, 2, 22, 30), strict=True) for _ in range(count)]
    whole = make_diagnosis()
    expected = [whole.update(metrics) for metrics in run]
    found = [title for due in expected for title in titles(due)]
    assert found == [diagnosis.TRUNCATED, diagnosis.ENTROPY, diagnosis.CRITIC]
    of = make_diagnosis()
    for metrics, due in zip(run, expected, strict=True):
        resumed = make_diagnosis()
        resumed.load_state_dict(json.loads(json.dumps(of.state_dict())))
        of = resumed
        assert of.update(metrics) == due
    assert of.state_dict() == whole.state_dict()


def test_the_documentation_has_every_warning():
    rows = re.findall(r"^\| (.+?) \| .+ \| (.+) \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [("warning", "what to try"), *diagnosis.WARNINGS.items()]


def test_advice_names_keys_and_experiments_that_exist():
    text = " ".join(diagnosis.WARNINGS.values())
    named = set(re.findall(r"[a-z_]+\.[a-z_]+|[a-z]+_[a-z_]+|\blr\b|[a-z_.]+(?==)", text))
    assert {"lr", "cell", "experiment", "rare_rewards", "algorithm.entropy_coeff", "slice_len"} <= named
    assert named <= keys.packaged_keys() | {"cell", "experiment", *plugins.yaml_names("experiment")}
