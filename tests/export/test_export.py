"""Exported policies do what the policy does, in any batch and without torch."""

import hashlib
import json
import math
import runpy
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import output_of
from rejections import error_of
from slow_cases import slow
from tasks import CUE, MASKED, PREVIOUS

import recurrl
from recurrl.errors import ConfigError
from recurrl.export.export import export, largest_difference, recorded_inputs
from recurrl.recurrent.cells import cell_names

IN_INFO = "env.action_mask_from_info=true"
RUNNER = Path(__file__).parent.parent.parent / "examples" / "deployment" / "act.py"
WITHOUT_TORCH = "import sys, runpy; sys.modules.update(torch=None, recurrl=None, gymnasium=None); "


@pytest.fixture(scope="session")
def exported(recurrl_export, finished_run, tmp_path_factory):
    """The export of a run by the command."""
    folder = tmp_path_factory.mktemp("exported")
    outcome = recurrl_export(finished_run, "--output", "made", cwd=folder).succeeded()
    *lines, last = outcome.out.splitlines()
    assert last == f"wrote {Path('made', 'policy.json')}"
    for line, name in zip(lines, ("policy.onnx", "policy.pt2"), strict=True):
        assert line.startswith(f"wrote {Path('made', name)} (differs from the policy by at most ")
        assert line.endswith(" of the outputs' scale)")
    return folder / "made"


def test_the_command_writes_files_and_what_they_take_and_give(exported, finished_run):
    description = json.loads((exported / "policy.json").read_text())
    assert sorted(path.name for path in exported.iterdir()) == ["policy.json", "policy.onnx", "policy.pt2"]
    for name, file in description["files"].items():
        assert file["sha256"] == hashlib.sha256((exported / name).read_bytes()).hexdigest()
        assert file["largest_difference"] <= 1e-6
    assert description["files"]["policy.onnx"]["opset"] == 18
    assert description["run"]["directory"] == str(finished_run)
    assert description["inputs"]["observation"]["shape"] == ["batch", 4]  # with the hidden entries
    assert list(description["states"]) == ["recurrent_state_h", "recurrent_state_c", "previous_action"]
    import onnx

    model = onnx.load(exported / "policy.onnx")
    assert [each.name for each in model.graph.input] == list(description["inputs"])
    assert [each.name for each in model.graph.output] == list(description["outputs"])
    assert model.opset_import[0].version == 18


def test_the_runner_needs_neither_torch_nor_recurrl(exported, finished_run, tmp_path):
    agent, rng = recurrl.load(finished_run), np.random.default_rng(0)
    observed = rng.standard_normal((40, 3, 4)).astype(np.float32)
    begins = rng.random((40, 3)) < 0.2
    np.savez(tmp_path / "seen.npz", observed=observed, begins=begins)
    code = (
        f"{WITHOUT_TORCH}act = runpy.run_path({str(RUNNER)!r}); import numpy as np; seen = np.load('seen.npz'); "
        f"policy = act['Policy']({str(exported)!r}, batch=3); "
        "print([policy.act(b, observation=o).tolist() for o, b in zip(seen['observed'], seen['begins'])])"
    )
    printed = output_of([sys.executable, "-c", code], cwd=tmp_path, timeout=120)
    state, expected = agent.initial_state(3), []
    for observation, begin in zip(observed, begins, strict=True):
        action, state = agent.act(observation, state, begin)
        expected.append(action.tolist())
    assert json.loads(printed) == expected
    program = f"{WITHOUT_TORCH}sys.argv[:] = sys.argv[1:]; runpy.run_path({str(RUNNER)!r}, run_name='__main__')"
    printed = output_of([sys.executable, "-c", program, "act.py", str(exported)])
    assert len(printed.splitlines()) == 5


def test_the_runner_takes_dicts_and_returns_the_parts_of_actions(agent_of, tmp_path):
    agent, _ = agent_of(CUE, "policy.previous_action=true", observation="dict", action="dict")
    export(agent, tmp_path, {}, formats=["onnx"])
    policy, state = runpy.run_path(str(RUNNER))["Policy"](tmp_path), agent.initial_state(1)
    with closing(agent.make_env()) as env:
        for step in range(4):
            observed, _ = env.reset(seed=step)
            batch = {"state": observed["state"][None], "more": {"symbol": observed["more"]["symbol"][None]}}
            exported_action = policy.act(np.array([step == 0]), batch)
            action, state = agent.act(batch, state)
            assert exported_action["move"] == action["move"]
            np.testing.assert_allclose(exported_action["more"]["aim"], action["more"]["aim"], atol=1e-5)
    printed = output_of([sys.executable, str(RUNNER), str(tmp_path)])
    assert len(printed.splitlines()) == 5


KINDS = [
    slow(CUE, (*PREVIOUS, "cell=lstm", "cell.num_layers=2"), {"action": "dict", "observation": "dict"}, False),
    slow(CUE, ("policy.noise_correlation=0.5",), {"action": "binary", "observation": "multi_discrete"}, True),
    slow(CUE, ("cell=none", "policy.bounded_action=tanh"), {"action": "bounded"}, True),
    slow(MASKED, (IN_INFO, *PREVIOUS), {"mask_in": "info", "action": "multi_discrete"}, True),
    ("Pendulum-v1", ("env.mask=[2]", "policy.noise_correlation=0.9"), {}, True),
]


@pytest.mark.parametrize(("env", "overrides", "kwargs", "sampled"), KINDS)
@pytest.mark.parametrize("form", ["pt2", slow("onnx")])
def test_every_kind_can_be_exported(agent_of, tmp_path, env, overrides, kwargs, sampled, form):
    agent, _ = agent_of(env, *overrides, **kwargs)
    description = export(agent, tmp_path, {}, sampled, [form])
    assert ("noise" in description["inputs"]) == sampled
    assert description["files"][f"policy.{form}"]["largest_difference"] <= 1e-6


MASK = {"mask_in": "info", "action": "discrete"}
DIFFERENT = [(1.01, CUE, (), {}), (math.nan, CUE, (), {}), (1.01, MASKED, (IN_INFO,), MASK)]


@pytest.mark.parametrize(("factor", "env", "overrides", "kwargs"), DIFFERENT)
def test_what_differs_is_not_written(agent_of, tmp_path, factor, env, overrides, kwargs):
    agent, _ = agent_of(env, "cell=none", *overrides, **kwargs)
    agent.policy.trunk.encoder.register_forward_hook(
        lambda _, __, features: features * (factor if torch.compiler.is_exporting() else 1.0)
    )
    with pytest.raises(ConfigError, match=r"The policy as pt2 differs from the policy by .* Nothing was written"):
        export(agent, tmp_path / "made", {}, formats=["pt2"])
    assert not (tmp_path / "made").exists()


def test_wrong_choices_are_noticed(agent_of):
    agent, _ = agent_of(CUE)
    step = agent.step

    def wrong(inputs):
        outputs = step(inputs)
        return {**outputs, "action": (outputs["action"] + 1) % 4}

    assert "actions differ from the policy's" in error_of(largest_difference, step, wrong, [recorded_inputs(agent)])


def test_missing_packages_are_named_with_the_command_that_installs_them(agent_of, tmp_path, monkeypatch):
    for name in ("onnxruntime", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None)
    agent, _ = agent_of(CUE)
    error = error_of(export, agent, tmp_path, {})
    assert "needs onnxscript and onnxruntime" in error
    assert "pip install 'recurrl[export]'" in error
    assert "--format must be one of onnx, pt2 (got h5)." in error_of(export, agent, tmp_path, {}, formats=["h5"])


@pytest.mark.slow
@pytest.mark.parametrize("cell", cell_names())
def test_every_cell_is_exported(agent_of, tmp_path, cell):
    agent, _ = agent_of(CUE, f"cell={cell}", "cell.num_layers=2")
    description = export(agent, tmp_path, {}, formats=["onnx"])
    assert description["files"]["policy.onnx"]["largest_difference"] <= 1e-5


@pytest.mark.parametrize(("cell", "names"), [("gru", "h"), ("lstm", "hc")])
def test_the_layout_of_rsl_rl_has_its_names_and_shapes_and_acts_as_the_policy(agent_of, tmp_path, cell, names):
    import onnxruntime

    wide = ["env.wrappers=[{wrapper: gymnasium.wrappers:DtypeObservation, dtype: float64}]"] * (cell == "lstm")
    agent, _ = agent_of("Pendulum-v1", f"cell={cell}", "cell.num_layers=2", "env.mask=[2]", *wide)
    described = agent.export(tmp_path, ["onnx"], layout="rsl_rl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.json", "policy.onnx"]
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    inputs, outputs = ([each.name for each in of] for of in (session.get_inputs(), session.get_outputs()))
    assert inputs == ["obs", *(f"{name}_in" for name in names)] == list(described["inputs"])
    assert outputs == ["actions", *(f"{name}_out" for name in names)] == list(described["outputs"])
    assert described["inputs"]["obs"]["shape"] == ["batch", 3]
    assert described["inputs"]["h_in"]["shape"] == [2, "batch", 8]
    assert described["states"]["h_in"] == {"output": "h_out", "initial": "zeros"}
    rng, state = np.random.default_rng(0), agent.initial_state(3)
    theirs = {f"{name}_in": np.zeros((2, 3, 8), np.float32) for name in names}
    for step in range(50):
        observed, begins = rng.standard_normal((3, 3)).astype(np.float32), rng.random(3) < 0.1
        expected, state = agent.act(observed, state, begins)
        theirs = {name: value * ~begins[:, None] for name, value in theirs.items()}
        action, *new = session.run(None, {"obs": observed, **theirs})
        np.testing.assert_allclose(action, expected, atol=1e-5, err_msg=f"step {step}")
        theirs = dict(zip(theirs, new, strict=True))


NOT_OF_RSL_RL = [
    ((CUE,), {"observation": "dict", "action": "bounded"}, "observes one vector of numbers"),
    ((CUE,), {"observation": "image", "action": "bounded"}, "observes one vector of numbers"),
    ((CUE,), {"action": "discrete"}, "acts by one vector of numbers"),
    (("Pendulum-v1", "policy.previous_action=true"), {}, "has one or two states, a vector in each layer"),
    (("Pendulum-v1", "env.previous_reward=true"), {}, "observes nothing but one vector (got previous_reward)"),
    (("Pendulum-v1", "cell=lru"), {}, "has one or two states, a vector in each layer"),
]


@pytest.mark.parametrize(("made", "kwargs", "needs"), NOT_OF_RSL_RL)
def test_what_the_layout_of_rsl_rl_cannot_express_is_an_error(agent_of, tmp_path, made, kwargs, needs):
    agent, _ = agent_of(*made, **kwargs)
    error = error_of(agent.export, tmp_path / "made", ["onnx"], layout="rsl_rl")
    assert error.startswith("--layout rsl_rl needs a policy that ")
    assert needs in error
    assert not (tmp_path / "made").exists()


def test_a_layout_is_of_onnx_files_and_of_the_most_probable_actions(recurrl_export, finished_run, tmp_path):
    only = "--layout rsl_rl is for ONNX files with the most probable actions. Use --format onnx, without --sampled."
    assert recurrl_export(finished_run, "--layout", "rsl_rl", "--sampled", cwd=tmp_path).error == only
    assert recurrl_export(finished_run, "--layout", "rsl_rl", "--format", "pt2", cwd=tmp_path).error == only
    unknown = "--layout must be rsl_rl (got nope). Leave it out otherwise."
    assert recurrl_export(finished_run, "--layout", "nope", cwd=tmp_path).error == unknown
    # Of a discrete action.
    error = recurrl_export(finished_run, "--layout", "rsl_rl", cwd=tmp_path).error
    assert error.startswith("--layout rsl_rl needs a policy that acts by one vector of numbers (got")
