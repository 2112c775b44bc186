"""Teachers of a distillation: another run's policy, a function, or a policy in ONNX or TorchScript.

Shape legend: N environments, T steps of a row, B = N · T, A choices of an action.
"""

import importlib.util
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

import recurrl
from recurrl.config import EnvConfig
from recurrl.config.plugins import is_custom, load
from recurrl.envs import make_batched_env
from recurrl.envs.batched import Tensors
from recurrl.envs.interface import ActionPart
from recurrl.errors import naming, require, user_code
from recurrl.keys import ACTION, ACTION_MASK, IS_INIT, OBSERVATION, PREVIOUS_ACTION, name_of, nested, path_of
from recurrl.policy.preprocessing import PreviousAction
from recurrl.recurrent.layer import reset_state
from recurrl.specs import bounds_of, limit_of

TEACHER_ACTION = "teacher_action"

States = dict[str, Tensor]
Act = Callable[[Tensors, States, Tensor], tuple[Any, States]]
"""Maps raw observations, states and episode starts ``[N]`` to the environment's action and the new states."""
Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of one environment's recurrent states. Episodes begin with zeros."""


class Teacher:
    """Labels another policy's rollouts with the actions that the teacher would take.

    The teacher's recurrent states follow the episodes of these rollouts.

    Args:
        target: a run, ``module:function``, an ONNX file, or a TorchScript file with the ending ``.pt``.
        env: the student's environment options.
        privileged: true if the student's rollouts have the entry ``privileged``.
        device: the device of the rollouts.

    Raises:
        ConfigError: there is no such teacher, or its observations or actions do not fit the environment.
    """

    def __init__(self, target: str, env: EnvConfig, privileged: bool, device: torch.device) -> None:
        self._target, self._device, self._state = target, device, States()
        with closing(make_batched_env(env, 1, 0, privileged=privileged)) as one:
            self._interface = one.interface.to(device)
            first = one.observation_spec.zero().update(one.full_action_spec.zero())
            first[IS_INIT] = torch.ones(*one.batch_size, 1, dtype=torch.bool)
        self._previous_action = PreviousAction(self._interface.action_spec).to(device)
        advice = "It takes the observations of N environments, as they return them, and returns their actions."
        with user_code(f"algorithm.teacher={target} cannot be used: it fails", advice), torch.no_grad():
            self._act, self._shapes = open_teacher(target, device)
            self.label(first.unsqueeze(1).to(device))

    @torch.no_grad()
    def label(self, rows_NT: TensorDictBase) -> None:
        """Writes the teacher's actions, in the policy's units, into rows ``[N, T]`` that continue the last call's."""
        raw = self._interface.raw(rows_NT)
        is_init_NT, count = rows_NT[IS_INIT].squeeze(-1), len(rows_NT)
        if {len(state) for state in self._state.values()} != {count}:
            self._state = {key: torch.zeros(count, *shape, device=self._device) for key, shape in self._shapes.items()}
        steps = []
        for t, is_init_N in enumerate(is_init_NT.unbind(1)):
            state = {name: reset_state(value, is_init_N) for name, value in self._state.items()}
            observed = {key: values[:, t].clone() for key, values in raw.items()}  # a function may work in place
            action, self._state = self._act(observed, state, is_init_N)
            if PREVIOUS_ACTION in self._state:  # the action that was taken is the student's
                self._state[PREVIOUS_ACTION] = self._previous_action(rows_NT[ACTION][:, t])
            steps.append(self._parts(action, count))
        for part in self._interface.parts:
            label_NT = torch.stack([step[part.path] for step in steps], 1)
            rows_NT.set((TEACHER_ACTION, *part.path), self._converted(label_NT, part))
        if (OBSERVATION, ACTION_MASK) in self._interface.entries:
            mask_BA = rows_NT[OBSERVATION, ACTION_MASK].flatten(0, 1)
            chosen_BA = self._previous_action(rows_NT[TEACHER_ACTION].flatten(0, 1))
            # A spec's mask allows nothing.
            others = int(((chosen_BA > mask_BA).any(-1) & mask_BA.any(-1)).sum())
            self._require(not others, "that the action mask allows", f"{others} others", "Show it the mask.")

    def _parts(self, action: Any, count: int) -> dict[tuple[str, ...], Tensor]:
        parts = {part.path: reduce(getitem, part.path, action) for part in self._interface.parts}
        for part in self._interface.parts:
            shape, expected = tuple(parts[part.path].shape), (count, *part.raw.shape)
            self._require(shape == expected, f"of shape {expected}", shape, "Use a teacher of the same environment.")
        return parts

    def _converted(self, action_NT: Tensor, part: ActionPart) -> Tensor:
        """A part of the teacher's actions in the policy's units, clipped as in the environment."""
        limit = limit_of(part.raw)
        if limit is None:
            valid, what = action_NT.isfinite(), "that are finite"
        else:
            ends = torch.as_tensor(limit, device=self._device)
            valid = (action_NT == action_NT.long()) & (action_NT >= 0) & (action_NT < ends)
            what = f"that are integers below {limit}"
        self._require(bool(valid.all()), what, action_NT[~valid][:1].tolist(), "Use a teacher of the same environment.")
        low, high = (bound.to(self._device) for bound in bounds_of(part.spec))
        return part.from_env(action_NT).clamp(low, high)

    def _require(self, holds: bool, what: str, got: Any, advice: str) -> None:
        require(holds, f"algorithm.teacher={self._target} must return actions {what} (got {got}). {advice}")

    def state_dict(self) -> States:
        """The recurrent states ``[N, ...]``, by name."""
        return self._state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores the recurrent states.

        Raises:
            ValueError: they are another teacher's.
        """
        shapes = {name: tuple(value.shape[1:]) for name, value in state.items()}
        if shapes != self._shapes:
            raise ValueError(f"the teacher's states are {self._shapes}, but those saved are {shapes}")
        self._state = {name: value.to(self._device) for name, value in state.items()}


def open_teacher(target: str, device: torch.device) -> tuple[Act, Shapes]:
    """Opens the teacher that ``target`` names. Returns it, and the shapes of its states.

    Raises:
        ConfigError: there is no such teacher.
    """
    path = Path(target)
    if is_custom(target) and not path.exists():
        function = load(target, f"algorithm.teacher={target}")
        return lambda raw, state, _: (function(nested({path_of(key): raw[key] for key in raw})), state), {}
    require(
        path.exists(), f"algorithm.teacher={target} must exist. Use the folder of a run, a file or module:function."
    )
    kinds: dict[str, Callable[[Path, torch.device], tuple[Act, Shapes]]] = {".onnx": _onnx, ".pt": _torchscript}
    return kinds.get(path.suffix, _policy_of_run)(path, device)


def _policy_of_run(path: Path, device: torch.device) -> tuple[Act, Shapes]:
    """The best policy of a run, with its most probable actions."""
    # Through the public interface, because opening a run belongs to a layer above algorithms.
    with naming(f"algorithm.teacher={path}"):
        step: Any = recurrl.load(path, device=str(device)).step
    interface = step.interface
    shapes = {entry.name: tuple(entry.spec.shape) for entry in interface.observed}

    def act(raw: Tensors, state: States, is_init_N: Tensor) -> tuple[Any, States]:
        named = {name_of(key): values for key, values in raw.items()}
        seen = {name: tuple(named[name].shape[1:]) for name in (*shapes, *interface.added) if name in named}
        require(
            seen.keys() >= set(interface.added) and shapes.items() <= seen.items(),
            f"algorithm.teacher={path} observes {shapes} and {list(interface.added)}, but the student's environment "
            f"gives {seen}. Set env.mask and algorithm.critic_observation=[privileged] for what only the teacher sees, "
            "or another teacher.",
        )
        outputs = step({**state, **named, IS_INIT: is_init_N})
        action = nested({entry.path: outputs[entry.name] for entry in interface.actions if entry.path})
        return action or outputs[ACTION], {name: outputs[f"next.{name}"] for name in state}

    return act, step.state_shapes(sampled=False)


def _onnx(path: Path, device: torch.device) -> tuple[Act, Shapes]:
    """A policy in ONNX: a vector and states ``[layers, batch, size]`` to an action and new states, in that order."""
    require(
        importlib.util.find_spec("onnxruntime") is not None,
        f"algorithm.teacher={path} needs onnxruntime. Install it with: pip install 'recurrl[export]'",
    )
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    observed, *states = session.get_inputs()
    names = [each.name for each in session.get_inputs()]

    def call(observation: Tensor, *entering: Tensor) -> list[Tensor]:
        inputs = (observation, *(value.transpose(0, 1) for value in entering))
        arrays = (value.contiguous().cpu().numpy() for value in inputs)
        outputs = session.run(None, dict(zip(names, arrays, strict=True)))
        action, *new = (torch.from_numpy(each).to(device) for each in outputs)
        return [action, *(value.transpose(0, 1) for value in new)]

    def act(raw: Tensors, state: States, _: Tensor) -> tuple[Any, States]:
        size = 1 if observed.shape[0] == 1 else len(raw[OBSERVATION])  # rsl_rl exports for a batch of one
        chunks = (values.split(size) for values in (raw[OBSERVATION].float(), *state.values()))
        action, *new = map(torch.cat, zip(*map(call, *chunks), strict=True))
        return action, dict(zip(state, new, strict=True))

    return act, {each.name: (each.shape[0], *each.shape[2:]) for each in states}


def _torchscript(path: Path, device: torch.device) -> tuple[Act, Shapes]:
    """A policy without states in TorchScript: a vector to an action."""
    module = torch.jit.load(path, map_location=device).eval()
    require(
        not hasattr(module, "hidden_state"),
        f"algorithm.teacher={path} must not keep a recurrent state, which would be that of one environment. Export "
        "it to ONNX, where states are inputs and outputs.",
    )
    return lambda raw, state, _: (module(raw[OBSERVATION].float()), state), {}
