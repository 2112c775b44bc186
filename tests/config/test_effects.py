"""A value that the user gave and that has no effect is rejected; one of the package's yamls is left alone."""

import pytest
from collected import fresh_policy

CELL = "a cell other than none"
FALLING = "a learning rate or an option of the algorithm that falls"
GRPO = ("algorithm=grpo", "env.max_episode_steps=32")

BY_THE_CONFIGURATION = [
    ((), "desired_kl=0.02", "lr_schedule=adaptive"),
    (("epochs=1",), "min_epochs_fraction=0.5", "several epochs of several minibatches"),
    (("minibatch_slices=16",), "min_epochs_fraction=0.5", "several epochs of several minibatches"),
    ((), "env.name=mine", "a custom yaml in a folder env"),
    ((), 'env.ids=["Acrobot-v1"]', "a custom yaml in a folder env"),
    (("lr_schedule=adaptive",), "lr_final_fraction=0.5", "lr_schedule=linear"),
    (("algorithm.entropy_coeff=0",), "algorithm.entropy_final_fraction=0.5", "algorithm.entropy_coeff above 0"),
    (("algorithm.critic_coeff=0",), "algorithm.clip_value=0.2", "algorithm.critic_coeff above 0"),
    (("algorithm.gamma=0",), "algorithm.lmbda=0.5", "algorithm.gamma above 0"),
    (("lr_final_fraction=1", "algorithm.entropy_coeff=0"), "schedule_frames=50_000", FALLING),
    (GRPO, "algorithm.ref_refresh_iterations=3", "algorithm.kl_to_ref_coeff above 0"),
    *((("cell=none",), key, CELL) for key in ("backend=triton", "recompute=full", "precision=tf32")),
    (("cell=none",), "evaluation.memory=true", f"evaluation.episodes above 0 and {CELL}"),
    (("evaluation.episodes=0",), "evaluation.memory=true", f"evaluation.episodes above 0 and {CELL}"),
    (("evaluation.episodes=0",), "evaluation.random=true", "evaluation.episodes above 0"),
    ((), 'algorithm.critic_observation=["privileged"]', "algorithm.critic=recurrent or feedforward"),
]

SEEN_BY_A_TEACHER = "algorithm=distill algorithm.teacher=its algorithm.critic_observation=[privileged]"
BY_THE_SPACES = [
    ("cartpole_no_velocity", "policy.initial_std=0.3", "continuous actions"),
    ("cartpole_no_velocity", "policy.bounded_action=tanh", "bounded continuous actions"),
    ("cartpole_no_velocity", "encoder.images=impala", "images"),
    ("repeat_first", "env.normalize_observation=false", "observations of numbers"),
    ("atari", "encoder.layer_norm=true", "observations other than images"),
    (f"repeat_previous_torch {SEEN_BY_A_TEACHER}", "env.normalize_observation=false", "observations of numbers"),
]


@pytest.mark.parametrize(("overrides", "override", "needed"), BY_THE_CONFIGURATION)
def test_a_value_that_has_no_effect_is_rejected_with_what_it_needs(rejected, overrides, override, needed):
    error = f"{override.replace('_000', '000')} has no effect without {needed}. Leave it out, or choose {needed}."
    assert rejected("device=cpu", *overrides, override) == error


def test_a_value_in_a_dictionary_is_one_of_its_key(rejected):
    assert rejected("cell=none", "evaluation={memory: true}").startswith("evaluation.memory=true has no effect without")


@pytest.mark.parametrize(("env", "override", "needed"), BY_THE_SPACES)
def test_a_value_that_environments_ignore_is_rejected(train, check, compose_untyped, tmp_path, env, override, needed):
    chosen = f"device=cpu env={env}".split()
    env_id = compose_untyped(*chosen).env.id
    expected = f"{override} has no effect without {needed}, which env.id={env_id} does not have. Leave it out."
    assert train(*chosen, override).error == expected
    assert list(tmp_path.iterdir()) == []
    assert check(*chosen, override).error == expected


def test_a_value_of_the_packages_yamls_is_left_alone(train, tiny, compose):
    tuned = ("experiment=mountaincar_continuous_no_velocity", "env=cartpole_no_velocity", "lr_schedule=adaptive")
    train(*tiny, *tuned).succeeded()
    assert fresh_policy(compose("device=cpu", *tiny, *tuned)).noise_correlation == 0.9  # which every action may have


def test_a_value_of_the_resumed_run_is_left_alone_and_an_explicit_one_is_not(train, finished_run):
    ours = (f"resume={finished_run}", "lr_schedule=adaptive", "total_frames=96", "hydra.run.dir=run")
    error = train(*ours, "lr_final_fraction=0.2").error
    assert error.startswith("lr_final_fraction=0.2 has no effect without lr_schedule=linear.")
    train(*ours).succeeded()  # the run had lr_final_fraction=0.1
