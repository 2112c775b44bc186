"""``algorithm=distill``: what the teacher is shown, that it follows the student, and what is learned of it."""

import math
import sys
from dataclasses import replace
from types import MethodType

import pytest
import torch
from collected import fresh_policy, with_rollouts
from rejections import error_of
from run_files import column, whole_and_resumed
from tasks import CUE, MASKED
from torch import nn

import recurrl
from recurrl.algorithms.distill import imitation_error
from recurrl.algorithms.ppo import PPO
from recurrl.algorithms.teachers import TEACHER_ACTION
from recurrl.build import make_algorithm
from recurrl.errors import ConfigError
from recurrl.policy.distributions import Gaussian, Joint, LazyCategorical, entries

PENDULUM = ("env=pendulum_no_velocity", "env.max_episode_steps=11")


def distilled(teacher, *overrides):
    return ("algorithm=distill", f"algorithm.teacher={teacher}", *overrides)


@pytest.fixture
def function(monkeypatch):
    """Names a function so that a configuration can."""

    def function(teacher):
        monkeypatch.setattr(sys.modules[__name__], "teacher", teacher, raising=False)
        return f"{__name__}:teacher"

    return function


@pytest.fixture(scope="session")
def teacher_run(recurrl_train, tiny, tmp_path_factory):
    """A run that saw Pendulum's velocity and what it did, an LSTM."""
    folder = tmp_path_factory.mktemp("teacher")
    ours = (*PENDULUM, "env.mask=[]", "cell=lstm", "policy.previous_action=true", "hydra.run.dir=teacher")
    recurrl_train(*tiny, *ours, cwd=folder).succeeded()
    return folder / "teacher"


def labelled(config, count=3):
    """The algorithm of a run, and its rollouts with the teacher's actions."""
    algorithm, collected = with_rollouts(config, count, std=0.5)
    batches = [batch.clone() for batch in collected]
    for batch in batches:
        algorithm.teacher.label(batch)
    return algorithm, batches


def whole(batch):
    """Pendulum's observation, of which the student sees the first two entries."""
    return torch.cat((batch["observation", "observation"], batch["observation", "privileged"]), -1)


def test_a_run_as_the_teacher_sees_all_and_follows_the_students_episodes(small, teacher_run):
    _, batches = labelled(small(*PENDULUM, *distilled(teacher_run)))
    agent = recurrl.load(teacher_run)
    state, resets = agent.initial_state(4), 0
    for batch in batches:
        for t, step in enumerate(batch.unbind(1)):
            action, state = agent.act(whole(batch)[:, t], state, step["is_init"].squeeze(-1))
            expected = torch.from_numpy(action) / 2  # of a torque of at most 2
            torch.testing.assert_close(step[TEACHER_ACTION], expected, atol=1e-6, rtol=0)
            state = replace(state, tensors={**state.tensors, "previous_action": step["action"].clamp(-1, 1)})
            resets += int(step["is_init"].sum())
    assert resets == 4 * 3  # the first step, and after steps 11 and 22 of 24


def test_a_function_sees_the_whole_observation_and_acts_in_plain_units(small, function):
    teacher = function(lambda seen: seen["observation"][:, 2:].mul_(0.1))
    algorithm, (batch,) = labelled(small(*PENDULUM, *distilled(teacher)), 1)
    torch.testing.assert_close(batch[TEACHER_ACTION], 0.05 * batch["observation", "privileged"])
    assert not algorithm.teacher.state_dict()


def test_parts_of_dict_actions_and_observations_go_by_their_names(small, function):
    def teacher(seen):
        aim = seen["observation"]["state"].clamp(-1, 1) / 2
        return {"move": seen["observation"]["more"]["symbol"].clamp(max=1), "more": {"aim": aim}}

    kinds = ("env=gym", "env.packages=[tasks]", f"env.id={CUE}", "+env.kwargs.observation=dict")
    overrides = distilled(function(teacher), "+env.kwargs.action=dict", "algorithm.critic_observation=[state]")
    algorithm, (batch,) = labelled(small(*kinds, *overrides), 1)
    torch.testing.assert_close(batch[TEACHER_ACTION, "more", "aim"], batch["observation", "state"] / 2)
    assert torch.isfinite(torch.tensor(algorithm.update(batch, 0.0)["loss/imitation"]))


class Recurrent(nn.Module):
    """rsl_rl's export of a GRU: states are inputs and outputs, layers first."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(3, 5, num_layers=2), nn.Linear(5, 1)

    def forward(self, obs, h_in):
        features, h_out = self.rnn(obs.unsqueeze(0), h_in)
        return self.head(features.squeeze(0)), h_out


@pytest.mark.parametrize("alone", [True, False], ids=["for one environment", "for any batch"])
def test_a_recurrent_onnx_file_is_a_teacher_whose_states_are_reset(small, tmp_path, alone):
    module, count = Recurrent(), 1 if alone else 4
    inputs = (torch.zeros(count, 3), torch.zeros(2, count, 5))
    names = {"input_names": ["obs", "h_in"], "output_names": ["actions", "h_out"]}
    batch = {} if alone else {"dynamic_axes": {"obs": {0: "b"}, "h_in": {1: "b"}, "h_out": {1: "b"}}}
    torch.onnx.export(module, inputs, str(tmp_path / "teacher.onnx"), **names, **batch, dynamo=False)
    _, batches = labelled(small(*PENDULUM, *distilled(tmp_path / "teacher.onnx")))
    state = torch.zeros(2, 4, 5)
    for batch in batches:
        for t, step in enumerate(batch.unbind(1)):
            with torch.no_grad():
                action, state = module(whole(batch)[:, t], state * ~step["is_init"])
            torch.testing.assert_close(step[TEACHER_ACTION], action.clamp(-2, 2) / 2, atol=1e-6, rtol=0)


def test_a_torchscript_file_is_a_teacher_unless_it_keeps_a_state_to_itself(small, tmp_path):
    module = nn.Linear(3, 1)
    torch.jit.script(module).save(tmp_path / "teacher.pt")
    _, (batch,) = labelled(small(*PENDULUM, *distilled(tmp_path / "teacher.pt")), 1)
    with torch.no_grad():
        torch.testing.assert_close(batch[TEACHER_ACTION], module(whole(batch)) / 2)
    module.register_buffer("hidden_state", torch.zeros(1, 1, 5))
    torch.jit.script(module).save(tmp_path / "recurrent.pt")
    with pytest.raises(ConfigError, match=r"must not keep a recurrent state.* Export it to ONNX"):
        labelled(small(*PENDULUM, *distilled(tmp_path / "recurrent.pt")))


def test_the_error_of_imitation_is_that_of_the_mean_or_of_the_choice():
    mean = torch.randn(2, 3, 4, requires_grad=True)
    scale = torch.full_like(mean, 0.5, requires_grad=True)
    wanted, choice = torch.randn(2, 3, 4), torch.randint(5, (2, 3))
    logits = torch.randn(2, 3, 5, requires_grad=True)
    gaussian, categorical = entries(Gaussian, 1, mean, scale), LazyCategorical(logits)
    near = (mean - wanted).square().sum(-1) / 2
    chosen = -logits.log_softmax(-1).gather(-1, choice.unsqueeze(-1)).squeeze(-1)
    both = imitation_error(Joint({"a": gaussian, "b": categorical}), {"a": wanted, "b": choice})
    found = imitation_error(gaussian, wanted), imitation_error(categorical, choice), both
    torch.testing.assert_close(found, (near, chosen, near + chosen))
    both.sum().backward()
    assert scale.grad is None


def test_the_weight_goes_to_imitation_and_the_rest_to_ppo_and_falls(small, function):
    target = function(lambda seen: torch.zeros_like(seen["observation"][:, 2:]))
    overrides = ("algorithm.weight=0.8", "algorithm.weight_final_fraction=0.5", "epochs=1", "minibatch_slices=8")
    algorithm, (batch,) = labelled(small(*PENDULUM, *distilled(target, *overrides)), 1)
    terms, errors = {}, []

    def loss(self, slices, output):
        losses, ppo = type(self).loss(self, slices, output), PPO.loss(self, slices, output)
        terms.update({name: (float(term), float(ppo.terms.get(name, 0))) for name, term in losses.terms.items()})
        errors.append(float(imitation_error(output.distribution, slices[TEACHER_ACTION]).mean()))
        return losses

    algorithm.loss = MethodType(loss, algorithm)
    assert algorithm.update(batch, 0.5)["distill/weight"] == pytest.approx(0.6)  # halfway from 0.8 to 0.4
    assert terms["imitation"][0] == pytest.approx(0.6 * errors[-1], rel=1e-5)
    for name, share in {"objective": 0.4, "entropy": 0.4, "critic": 1.0}.items():
        assert terms[name][0] == pytest.approx(share * terms[name][1], rel=1e-5)


def test_the_teacher_is_frozen_and_only_its_states_are_saved(small, teacher_run):
    algorithm, (batch,) = labelled(small(*PENDULUM, *distilled(teacher_run)), 1)
    assert not [name for name, _ in algorithm.named_parameters() if "teacher" in name]
    shapes = {name: tuple(value.shape) for name, value in algorithm.components()["teacher"].state_dict().items()}
    assert shapes == {"recurrent_state_h": (4, 1, 8), "recurrent_state_c": (4, 1, 8), "previous_action": (4, 1)}
    before = [parameter.clone() for parameter in algorithm.policy.parameters()]
    algorithm.update(batch, 0.0)
    assert not all(map(torch.equal, before, algorithm.policy.parameters()))


def test_a_resumed_run_goes_on_exactly(train, tiny, teacher_run, tmp_path):
    falls = ("algorithm.weight_final_fraction=0", "total_frames=160", "checkpoint.every_frames=32")
    replay = ("buffer=replay", "buffer.rollouts=3", "buffer.replay_ratio=2", "buffer.min_replay_ratio=2")
    overrides = (*PENDULUM, *distilled(teacher_run), *falls, *replay, "backend=scan")
    whole_and_resumed(train, tmp_path, 96, *tiny, *overrides)
    assert len(set(column(tmp_path / "whole", "loss/imitation"))) == 5
    (tmp_path / "another.py").write_text("def teacher(seen):\n    return seen['observation'][:, :1]\n")
    other = train(f"resume={tmp_path / 'whole'}", "total_frames=192", "algorithm.teacher=another:teacher")
    assert "does not fit this configuration: algorithm.teacher is another:teacher and was" in other.error


def test_a_teacher_that_does_not_fit_is_an_error_that_says_why(small, teacher_run, function, tmp_path):
    def error(teacher, *overrides):
        config = small(*PENDULUM, *distilled(teacher, *overrides))
        return error_of(make_algorithm, config, fresh_policy(config)).removeprefix(f"algorithm.teacher={teacher} ")

    assert error(teacher_run, "algorithm.critic_observation=[]").startswith(
        "observes {'observation': (3,)} and [], but the student's environment gives {'observation': (2,)}. Set "
        "env.mask and algorithm.critic_observation=[privileged]"
    )
    assert error(tmp_path / "none") == "must exist. Use the folder of a run, a file or module:function."
    assert error(function(lambda seen: seen["observation"])) == (
        "must return actions of shape (1, 1) (got (1, 3)). Use a teacher of the same environment."
    )
    assert error(function(lambda seen: seen["goal"])).startswith("cannot be used: it fails with KeyError: 'goal'. It")


MASKS = ("env=gym", "env.packages=[tasks]", f"env.id={MASKED}", "+env.kwargs.mask_in=observation")
NO_ACTIONS = [
    (PENDULUM, (1,), math.nan, "that are finite (got [nan]). Use a teacher of the same environment."),
    (("env=cartpole_no_velocity",), (), 7.0, "that are integers below 2 (got [7.0])."),
    (("env=cartpole_no_velocity",), (), 0.5, "that are integers below 2 (got [0.5])."),
    ((*MASKS, "+env.kwargs.action=discrete"), (), 0, "that the action mask allows (got "),
    ((*MASKS, "+env.kwargs.action=multi_discrete"), (2,), 0, "that the action mask allows (got "),
]


@pytest.mark.parametrize(("task", "shape", "action", "sentence"), NO_ACTIONS)
def test_a_label_that_is_no_action_of_the_environment_is_an_error(task, shape, action, sentence, function, small):
    calls = []

    def teacher(seen):
        calls.append(observation := seen["observation"])
        count = len(observation["seen"] if isinstance(observation, dict) else observation)
        return torch.zeros(count, *shape) + (action if len(calls) > 1 else 0)  # a first call is made before any rollout

    config = small(*task, *distilled(function(teacher), "algorithm.critic_observation=[]"))
    assert sentence in error_of(labelled, config, 1)


def test_labels_beyond_the_bounds_are_clipped_as_in_the_environment(function, small):
    _, (batch,) = labelled(small(*PENDULUM, *distilled(function(lambda seen: seen["observation"][:, :1] * 0 + 50))), 1)
    assert batch[TEACHER_ACTION].unique().tolist() == [1.0]


def test_a_student_without_the_sign_learns_to_turn_from_a_teacher_that_sees_it(compose, function):
    def teacher(seen):
        sign, way = seen["privileged"].unbind(-1)
        return torch.where(way == 1, sign.long() * 2, 1)

    sizes = ("env.num_envs=16", "frames_per_batch=512", "slice_len=16", "minibatch_slices=8", "device=cpu", "lr=1e-3")
    maze = ("env=t_maze", "env.kwargs.length=3", "backend=scan")
    config = compose(*maze, *sizes, *distilled(function(teacher)))
    algorithm, batches = with_rollouts(config, 12)
    losses = [algorithm.update(batch, 0.0)["loss/imitation"] for batch in batches]
    assert losses[0] > 0.4  # a mean over ten epochs
    assert losses[-1] < 0.05
