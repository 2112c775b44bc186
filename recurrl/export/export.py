"""Writes a policy as ONNX and as a program of ``torch.export``, each compared with the policy before."""

import hashlib
import importlib.util
import json
import logging
import shutil
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from recurrl import __version__
from recurrl.agent import Agent
from recurrl.agent.interface import Tensors
from recurrl.agent.step import IS_INIT, NEXT, NOISE_INPUT, Step
from recurrl.errors import require
from recurrl.export.checking import TOLERANCE, Call, example, largest_difference, played
from recurrl.keys import ACTION_MASK, PREVIOUS_REWARD
from recurrl.policy.noise import NOISE

OPSET = 18
ONNX, PT2 = FORMATS = ("onnx", "pt2")
STEPS, BATCH = 200, 3
DESCRIPTION = "policy.json"
_NEEDED = {ONNX: ("onnx", "onnxscript", "onnxruntime"), PT2: ()}


def export(
    agent: Agent, folder: Path, run: Mapping[str, Any], sampled: bool = False, formats: Collection[str] = FORMATS
) -> dict[str, Any]:
    """Writes ``policy.onnx``, ``policy.pt2`` and ``policy.json`` into a folder, and returns what the latter says.

    Each file is one step of :class:`recurrl.agent.step.Step`, in float32 and for any batch size.

    Args:
        agent: on the CPU.
        folder: made if it does not exist; earlier files of these names are replaced.
        run: where the policy comes from, for ``policy.json``.
        sampled: actions are drawn with the noise given as an input, instead of taking the most probable ones.
        formats: some of :data:`FORMATS`.

    Raises:
        ConfigError: a package is missing, or what was exported does not do what the policy does; nothing is written.
    """
    for name in formats:
        require(name in FORMATS, f"--format {name} does not exist. Choose one of: {', '.join(FORMATS)}.")
        missing = [package for package in _NEEDED[name] if importlib.util.find_spec(package) is None]
        require(
            not missing,
            f"Exporting to {name} needs {' and '.join(missing)}. Install them with: pip install 'recurrl[export]'",
        )
    step = agent.step
    pool = played(agent, STEPS)
    inputs = example(step, pool, BATCH, torch.Generator().manual_seed(0), sampled)
    with TemporaryDirectory() as temporary, torch.no_grad(), _quiet():
        outputs = step(inputs)
        batch = torch.export.Dim("batch", min=1)
        program = torch.export.export(step, (inputs,), dynamic_shapes=({name: {0: batch} for name in inputs},))
        files = {}
        for name in formats:
            path = Path(temporary) / f"policy.{name}"
            if name == ONNX:
                _write_onnx(program, path, inputs, outputs)
            else:
                torch.export.save(program, path)
            load = load_onnx if name == ONNX else load_pt2
            call = load(path)
            difference = max(largest_difference(step, call, pool, STEPS, each, sampled) for each in (1, BATCH))
            require(
                difference <= TOLERANCE,
                f"The policy as {name} differs from the policy by {difference:.1e} of the scale within {STEPS} steps, "
                f"more than {TOLERANCE:.0e}. Nothing was written. Its encoder or cell may compute something that does "
                "not export exactly; give the other --format.",
            )
            files[path.name] = {
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "largest_difference": difference,
                **({"opset": OPSET} if name == ONNX else {"torch": torch.__version__}),
            }
        description = _described(agent, step, inputs, outputs, run) | {"files": files}
        text = json.dumps(description, indent=2, ensure_ascii=False)
        (Path(temporary) / DESCRIPTION).write_text(text + "\n", encoding="utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        for path in Path(temporary).iterdir():
            shutil.move(path, folder / path.name)
    return description


def load_onnx(path: Path) -> Call:
    """An exported step in onnxruntime, on one core."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]

    def call(inputs: Tensors) -> Tensors:
        values = session.run(names, {name: value.numpy() for name, value in inputs.items()})
        return {name: torch.from_numpy(value) for name, value in zip(names, values, strict=True)}

    return call


def load_pt2(path: Path) -> Call:
    """An exported step in torch."""
    module = torch.export.load(path).module()
    return lambda inputs: module(inputs)


def _write_onnx(program: Any, path: Path, inputs: Tensors, outputs: Tensors) -> None:
    made = torch.onnx.export(
        program, (inputs,), input_names=list(inputs), output_names=list(outputs), opset_version=OPSET, verbose=False
    )
    assert made is not None
    made.save(path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on packages that it does not need."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)


def _described(agent: Agent, step: Step, inputs: Tensors, outputs: Tensors, run: Mapping[str, Any]) -> dict[str, Any]:
    """``policy.json``, for those who write the program around the policy."""
    states = step.state_shapes(sampled=NOISE_INPUT in inputs)
    return {
        "format": 1,
        "recurrl": __version__,
        "run": dict(run),
        "observation_space": str(agent.observation_space),
        "action_space": str(agent.action_space),
        "actions": "drawn with the input noise" if NOISE_INPUT in inputs else "the most probable ones",
        "inputs": {name: {**_array(value), "meaning": _meaning(name, states)} for name, value in inputs.items()},
        "outputs": {name: {**_array(value), "meaning": _result(name)} for name, value in outputs.items()},
        "states": {name: {"output": NEXT + name, "initial": "zeros"} for name in states},
        "resets": f"{IS_INIT} true in a row makes that row's states and previous reward zero before anything else; "
        "nothing else resets them. Set it at the first step of each episode.",
    }


def _array(value: torch.Tensor) -> dict[str, Any]:
    return {"dtype": str(value.dtype).removeprefix("torch."), "shape": ["batch", *value.shape[1:]]}


def _meaning(name: str, states: Collection[str]) -> str:
    meanings = {
        IS_INIT: "true where an episode begins",
        NOISE_INPUT: "fresh standard normal numbers for each step; the same numbers give the same actions",
        ACTION_MASK: "1 for each action that is allowed, 0 for others; those of several choices concatenated",
        PREVIOUS_REWARD: "what the last step gave, not scaled; ignored where an episode begins",
        NOISE: "state: the last step's noise of actions",
    }
    kept = f"state: the output {NEXT}{name} of the last step"
    raw = "as the environment returns it, with its hidden entries, not scaled"
    return meanings.get(name, kept if name in states else raw)


def _result(name: str) -> str:
    if name.startswith(NEXT):
        return f"state: the input {name.removeprefix(NEXT)} of the next step"
    if name.startswith("distribution."):
        return "parameter of the action's distribution, continuous ones normalised; logits not"
    return "in the environment's units, within its bounds"
