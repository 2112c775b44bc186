"""Exports a policy to ONNX and to ``torch.export``, and checks that each computes what the policy does."""

import hashlib
import importlib.util
import json
import logging
import shutil
import warnings
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from recurrl import __version__
from recurrl.agent import Agent
from recurrl.agent.named_arrays import Tensors
from recurrl.agent.step import NOISE_INPUT
from recurrl.errors import require
from recurrl.export.checking import BATCHES, STEPS, TOLERANCE, Call, largest_difference, recorded_inputs
from recurrl.export.layouts import RSL_RL, RslRlLayout, batch_dim, outputs_by_state
from recurrl.keys import ACTION_MASK, PREVIOUS_REWARD
from recurrl.recurrent.module.keys import IS_INIT
from recurrl.runtime.atomic import replacing

OPSET = 18
ONNX, PT2 = FORMATS = ("onnx", "pt2")
DESCRIPTION = "policy.json"
_MEANINGS = {
    IS_INIT: "true where an episode begins",
    NOISE_INPUT: "fresh standard normal numbers for each step; the same numbers give the same actions",
    ACTION_MASK: "1 for each action that is allowed, 0 for others; those of several choices concatenated",
    PREVIOUS_REWARD: "what the last step gave, not scaled; ignored where an episode begins",
}
_NEEDED = {ONNX: ("onnx", "onnxscript", "onnxruntime"), PT2: ()}


def export(
    agent: Agent,
    folder: Path,
    run: Mapping[str, Any],
    sampled: bool = False,
    formats: Collection[str] = FORMATS,
    layout: str | None = None,
) -> dict[str, Any]:
    """Writes ``policy.onnx``, ``policy.pt2`` and ``policy.json`` into a folder, and returns the content of the last.

    Each file is one step of :class:`recurrl.agent.step.Step`, in float32 and for any batch size.

    Args:
        agent: the policy to export, on the CPU.
        folder: made if it does not exist; earlier files of these names are replaced.
        run: where the policy comes from, for ``policy.json``.
        sampled: sample actions with noise, which is then another input, instead of taking the most probable ones.
        formats: some of :data:`FORMATS`.
        layout: ``rsl_rl`` for the names and shapes that rsl_rl uses, in ONNX; None for recurrl's.

    Raises:
        ConfigError: a package is missing, the layout cannot hold the policy, or the exported step differs from the
            policy; nothing is written.
    """
    _check_request(formats, sampled, layout)
    step: Any = agent.step if layout is None else RslRlLayout(agent.step)
    inputs = recorded_inputs(agent, sampled)
    if layout is not None:
        inputs = step.inputs_of(inputs)
    with TemporaryDirectory() as temporary, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about packages that it does not need
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        outputs = step(inputs)
        batch = torch.export.Dim("batch", min=1)
        dims = {name: {batch_dim(name): batch} for name in inputs}
        program = torch.export.export(step, (inputs,), dynamic_shapes=(dims,))
        files = {}
        for name in formats:
            path = Path(temporary) / f"policy.{name}"
            call = _write_onnx(program, path, inputs, outputs) if name == ONNX else _write_pt2(program, path)
            difference = max(largest_difference(step, call, inputs, batch) for batch in BATCHES)
            require(
                difference <= TOLERANCE,
                f"The policy as {name} differs from the policy by {difference:.1e} of the scale in {STEPS} steps, "
                f"more than {TOLERANCE:.0e}. Nothing was written. Its encoder or cell may compute something that does "
                "not export exactly; use the other --format.",
            )
            files[path.name] = {
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "largest_difference": difference,
                **({"opset": OPSET} if name == ONNX else {"torch": torch.__version__}),
            }
        description = _described(agent, inputs, outputs, run) | {"files": files}
        text = json.dumps(description, indent=2, ensure_ascii=False)
        (Path(temporary) / DESCRIPTION).write_text(text + "\n", encoding="utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:  # replaces no file before all are copied
            for path in Path(temporary).iterdir():
                shutil.copyfile(path, stack.enter_context(replacing(folder / path.name)))
    return description


def _check_request(formats: Collection[str], sampled: bool, layout: str | None) -> None:
    """Rejects formats and layouts that do not exist or do not go together, and missing packages."""
    for name in formats:
        require(name in FORMATS, f"--format {name} does not exist. Choose one of: {', '.join(FORMATS)}.")
        missing = [package for package in _NEEDED[name] if importlib.util.find_spec(package) is None]
        require(
            not missing,
            f"Exporting to {name} needs {' and '.join(missing)}. Install them with: pip install 'recurrl[export]'",
        )
    require(layout in (None, RSL_RL), f"--layout {layout} does not exist. Choose {RSL_RL}, or leave it out.")
    require(
        layout is None or (set(formats) == {ONNX} and not sampled),
        f"--layout {layout} is for ONNX files with the most probable actions. Use --format onnx, without --sampled.",
    )


def _write_onnx(program: Any, path: Path, inputs: Tensors, outputs: Tensors) -> Call:
    """Writes a program as ONNX, and loads it into onnxruntime, with one thread."""
    import onnxruntime

    onnx_program = torch.onnx.export(
        program, (inputs,), input_names=list(inputs), output_names=list(outputs), opset_version=OPSET, verbose=False
    )
    assert onnx_program is not None
    onnx_program.save(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def call(inputs: Tensors) -> Tensors:
        values = session.run(list(outputs), {name: value.numpy() for name, value in inputs.items()})
        return {name: torch.from_numpy(value) for name, value in zip(outputs, values, strict=True)}

    return call


def _write_pt2(program: Any, path: Path) -> Call:
    """Writes a program of ``torch.export``, and loads it."""
    torch.export.save(program, path)
    return torch.export.load(path).module()


def _described(agent: Agent, inputs: Tensors, outputs: Tensors, run: Mapping[str, Any]) -> dict[str, Any]:
    """The content of ``policy.json``, for those who write the program around the policy."""
    states = outputs_by_state(outputs)
    meanings = dict.fromkeys(inputs, "as the environment returns it, with its hidden entries, not scaled")
    meanings |= {name: f"state: the output {output} of the last step" for name, output in states.items()} | _MEANINGS
    return {
        "format": 1,
        "recurrl": __version__,
        "run": dict(run),
        "observation_space": str(agent.observation_space),
        "action_space": str(agent.action_space),
        "actions": "drawn with the input noise" if NOISE_INPUT in inputs else "the most probable ones",
        "inputs": {name: {**_array(name, value), "meaning": meanings[name]} for name, value in inputs.items()},
        "outputs": {name: _array(name, value) for name, value in outputs.items()},
        "states": {name: {"output": output, "initial": "zeros"} for name, output in states.items()},
        "units": "Actions are in the environment's units. Outputs distribution.* are the parameters of the policy's "
        "distribution: continuous actions normalised, logits up to a constant.",
        "resets": f"{IS_INIT} true in a row makes that row's states and previous reward zero before anything else; "
        "nothing else resets them. Set it at the first step of each episode."
        if IS_INIT in inputs
        else "Pass zeros as states at the first step of each episode; nothing else resets them.",
    }


def _array(name: str, value: torch.Tensor) -> dict[str, Any]:
    shape: list[int | str] = list(value.shape)
    shape[batch_dim(name)] = "batch"
    return {"dtype": str(value.dtype).removeprefix("torch."), "shape": shape}
