"""Exports a policy to ONNX and to ``torch.export``, and checks that each computes what the policy does.

Shape legend: B batch, L layers.
"""

import hashlib
import importlib.util
import json
import logging
import shutil
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from recurrl import __version__
from recurrl.agent import NEXT, NOISE_INPUT, Agent, Step, Tensors
from recurrl.errors import ConfigError, require
from recurrl.keys import ACTION, ACTION_MASK, IS_INIT, NOISE, OBSERVATION, PREVIOUS_ACTION, PREVIOUS_REWARD
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
RSL_RL = "rsl_rl"
STATES = {"h_in": "h_out", "c_in": "c_out"}
"""For each state input, the output whose value the next step takes as that input."""
STEPS, BATCHES = 200, (1, 3)
TOLERANCE = 1e-5
"""Largest allowed difference of an output, relative to its largest magnitude, or to 1 if that is smaller."""
RESETS = 0.02
"""Probability that a step begins an episode."""
_NEEDED = {ONNX: ("onnx", "onnxscript", "onnxruntime"), PT2: ()}

Call = Callable[[Tensors], Tensors]


def export(
    agent: Agent,
    folder: Path,
    run: Mapping[str, Any],
    sampled: bool = False,
    formats: Collection[str] = FORMATS,
    layout: str | None = None,
) -> dict[str, Any]:
    """Writes ``policy.onnx``, ``policy.pt2`` and ``policy.json`` into a folder, and returns the content of the last.

    Each file is one step of :class:`recurrl.agent.Step`, in float32 and for any batch size.

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
            difference = max(largest_difference(step, call, _batches(inputs, size)) for size in BATCHES)
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
        require(name in FORMATS, f"--format must be one of {', '.join(FORMATS)} (got {name}).")
        missing = [package for package in _NEEDED[name] if importlib.util.find_spec(package) is None]
        require(
            not missing,
            f"Exporting to {name} needs {' and '.join(missing)}. Install them with: pip install 'recurrl[export]'",
        )
    require(layout in (None, RSL_RL), f"--layout must be {RSL_RL} (got {layout}). Leave it out otherwise.")
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
    state_outputs = STATES | {name.removeprefix(NEXT): name for name in outputs if name.startswith(NEXT)}
    states = {name: output for name, output in state_outputs.items() if output in outputs}
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
        "resets": f"{IS_INIT} true in a row makes that row's states zero before anything else, and its "
        f"{PREVIOUS_REWARD}, if that is an input; nothing else resets them. Set it at the first step of each episode."
        if IS_INIT in inputs
        else "Pass zeros as states at the first step of each episode; nothing else resets them.",
    }


def _array(name: str, value: torch.Tensor) -> dict[str, Any]:
    shape: list[int | str] = list(value.shape)
    shape[batch_dim(name)] = "batch"
    return {"dtype": str(value.dtype).removeprefix("torch."), "shape": shape}


@torch.no_grad()
def recorded_inputs(agent: Agent, sampled: bool = False) -> Tensors:
    """The policy's inputs in :data:`STEPS` steps of one environment, ``[STEPS, ...]``, with random resets.

    Args:
        agent: the policy.
        sampled: add random noise, as for sampled actions.
    """
    state = agent.initial_state()
    rows: list[Tensors] = []
    reward: Any = 0.0
    is_init = True
    with closing(agent.make_env()) as env:
        observation, info = env.reset(seed=0)
        for _ in range(STEPS):
            extra: dict[str, Any] = {"reward": reward, "action_mask": info.get(ACTION_MASK)}
            rows.append(agent.inputs(observation, state, is_init, **extra))
            action, state = agent.act(observation, state, is_init, **extra)
            observation, reward, terminated, truncated, info = env.step(action)
            is_init = terminated or truncated
            if is_init:
                observation, info = env.reset()
    inputs = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    generator = torch.Generator().manual_seed(0)
    inputs[IS_INIT] = torch.rand(STEPS, generator=generator) < RESETS
    is_correlated = inputs.pop(NOISE, None) is not None
    if sampled:
        names = [NOISE_INPUT, NOISE] if is_correlated else [NOISE_INPUT]
        inputs |= {name: torch.randn(STEPS, agent.policy.noise_size, generator=generator) for name in names}
    return inputs


@torch.no_grad()
def largest_difference(step: Call, call: Call, batches: Iterable[Tensors]) -> float:
    """The largest difference between the outputs of two steps for the same inputs.

    It is relative to the largest magnitude of an output, or to 1 if that is smaller. Discrete actions that differ are
    counted instead, because rounding may decide a tie either way.

    Raises:
        ConfigError: discrete actions differ more often than ties explain.
    """
    pairs = [(step(inputs), call(inputs)) for inputs in batches]
    difference, wrong, choices = 0.0, 0, 0
    for name in pairs[0][0]:
        ours, theirs = (torch.cat([each[name].flatten() for each in outputs]) for outputs in zip(*pairs, strict=True))
        if not ours.is_floating_point():
            wrong += int((theirs != ours).sum())
            choices += ours.numel()
        elif name != NEXT + PREVIOUS_ACTION:  # the action, which may be a tie
            off = (theirs.double() - ours.double()).abs().nan_to_num(torch.inf).max()
            # The logits of actions that are not allowed would hide any difference in those of the others.
            scale = ours[ours > torch.finfo(ours.dtype).min].abs().max().clamp(min=1.0)
            difference = max(difference, float(off / scale))
    if difference <= TOLERANCE and wrong > choices / 1000:
        raise ConfigError(f"{wrong} of {choices} discrete actions differ from the policy's. Use the other --format.")
    return difference


def _batches(inputs: Tensors, size: int) -> Iterator[Tensors]:
    """Random batches of ``size`` of the inputs, as many as there are inputs."""
    for rows_B in torch.randint(STEPS, (STEPS, size), generator=torch.Generator().manual_seed(0)):
        yield {name: values.index_select(batch_dim(name), rows_B) for name, values in inputs.items()}


def batch_dim(name: str) -> int:
    """The dimension of an input or output that is the batch: the second of rsl_rl's states, else the first."""
    return int(name in (*STATES, *STATES.values()))


class RslRlLayout(nn.Module):
    """A step as rsl_rl exports its policies: ``obs, h_in, c_in`` to ``actions, h_out, c_out``.

    Observations ``[B, ...]`` are raw, in float32, and actions the environment's own. States are ``[L, B, ...]``; a cell
    with one state has no ``c_in``. The step does not reset them: pass zeros at the beginning of an episode.

    Args:
        step: the policy's step.

    Attributes:
        states: ``h`` or ``c``, by the name of the policy's state.

    Raises:
        ConfigError: the layout cannot hold the policy.
    """

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step, interface, shapes = step, step.interface, step.state_shapes(sampled=False)
        vectors = (("observes", interface.observed, OBSERVATION), ("acts by", interface.actions, ACTION))
        for what, entries, name in vectors:
            kinds = {entry.name: f"{entry.spec.dtype} {tuple(entry.spec.shape)}" for entry in entries}
            fits = list(kinds) == [name] and entries[0].spec.dtype.is_floating_point and entries[0].spec.ndim == 1
            _require_policy(fits, f"{what} one vector of numbers", f"{kinds}")
        _require_policy(not interface.added, "observes nothing but one vector", ", ".join(interface.added))
        fits = len(shapes) <= 2 and all(len(shape) == 2 for shape in shapes.values())
        _require_policy(fits, "has one or two states, a vector in each layer", f"{shapes}")
        self.states = dict(zip(shapes, "hc", strict=False))

    def forward(self, inputs: Tensors) -> Tensors:
        """One step, with this layout's inputs and outputs."""
        states = {name: inputs[f"{short}_in"].transpose(0, 1) for name, short in self.states.items()}
        observed = inputs["obs"].to(self.step.interface.observed[0].spec.dtype)
        is_init_B = torch.zeros_like(observed[:, 0], dtype=torch.bool)
        outputs = self.step({OBSERVATION: observed, IS_INIT: is_init_B, **states})
        new = {f"{short}_out": outputs[NEXT + name].transpose(0, 1) for name, short in self.states.items()}
        return {"actions": outputs[ACTION], **new}

    def inputs_of(self, inputs: Tensors) -> Tensors:
        """Converts the inputs of the policy's step to this layout's."""
        states = {f"{short}_in": inputs[name].transpose(0, 1).contiguous() for name, short in self.states.items()}
        return {"obs": inputs[OBSERVATION].float(), **states}


def _require_policy(condition: bool, what: str, got: str) -> None:
    require(condition, f"--layout rsl_rl needs a policy that {what} (got {got}). Leave --layout out.")
