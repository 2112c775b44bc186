"""Behaviour cloning: a policy imitates recorded episodes before it trains.

Shape legend: T steps of an episode, R rows, K steps of a slice.
"""

import logging
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, pad_sequence
from torch import Tensor, nn
from torch.nn import functional

from recurrl.agent import REWARD, NamedArray, NamedInterface
from recurrl.config import EnvConfig, PretrainConfig
from recurrl.errors import require, user_code
from recurrl.keys import ACTION, ACTION_MASK, IS_INIT, OBSERVATION, PREVIOUS_ACTION, PREVIOUS_REWARD
from recurrl.policy import Policy
from recurrl.policy.distributions import GaussianParameters
from recurrl.policy.preprocessing import PreviousAction
from recurrl.recurrent.layer import reset_state

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]
RECORDED = "recorded"
"""Entry: true for the steps of episodes, false for padding at the end of a row."""
MAX_NORM = 0.5
"""The norm that gradients are clipped to."""
_MAX_BYTES = 2**33
"""The most memory that the arrays of a file may take."""
_ROUNDING = 1e-4
"""How far an action may lie outside its bounds, as a fraction of the bound."""


def pretrain(policy: Policy, env: EnvConfig, options: PretrainConfig, lr: float, slice_len: int, rows: int) -> float:
    """Maximises the log-likelihood of recorded actions, and returns its mean in the last epoch, in nats per step.

    Episodes lie end to end in rows, which are learned slice by slice: gradients reach back to the beginning of the
    slice, states to that of the episode. Running statistics of observations are updated first. The critic is not
    trained, nor is the standard deviation of continuous actions, which PPO needs to explore.

    Args:
        policy: the policy, which is trained in place.
        env: options of the environment.
        options: the folder, and how often to learn from it.
        lr: the learning rate.
        slice_len: K, the steps of a slice.
        rows: R, the number of rows, and so of slices per gradient step; at most one per episode.

    Raises:
        ConfigError: the folder holds no episodes, or one of another environment; or the log-likelihood is not finite.
    """
    assert options.folder is not None
    episodes = read_episodes(Path(options.folder), policy, env)
    whole = TensorDict.cat(list(episodes)).unsqueeze(0).to(policy.device)
    (policy.actor() if policy.critic_only else policy).update_statistics(whole[OBSERVATION])
    logger.info("pretraining: %d steps in %d episodes of %s", whole.numel(), len(episodes), options.folder)
    fixed = {id(module.log_std) for module in policy.modules() if isinstance(module, GaussianParameters)}
    learned = [p for part in (policy.trunk, policy.actor_head) for p in part.parameters() if id(p) not in fixed]
    optimizer = torch.optim.Adam(learned, lr=lr, eps=1e-5)
    log_likelihood = 0.0
    for epoch in range(options.epochs):
        rows_RT = _in_rows(episodes, min(rows, len(episodes))).to(policy.device)
        log_likelihood = _epoch(policy.actor(), rows_RT, slice_len, optimizer)
        logger.info("pretraining: epoch %d of %d: log likelihood %.4g", epoch + 1, options.epochs, log_likelihood)
    policy.zero_grad()
    return log_likelihood


def _in_rows(episodes: Sequence[TensorDictBase], count: int) -> TensorDictBase:
    """The episodes in random order, end to end in rows ``[R, T]``, which are padded with zeros."""
    rows: list[list[TensorDictBase]] = [[] for _ in range(count)]
    for i in torch.randperm(len(episodes)).tolist():
        min(rows, key=lambda row: sum(map(len, row))).append(episodes[i])
    return pad_sequence([torch.cat(row) for row in rows])


def _epoch(policy: Policy, rows_RT: TensorDictBase, slice_len: int, optimizer: torch.optim.Optimizer) -> float:
    """Takes a gradient step for each slice, and returns the mean log-likelihood of the recorded actions."""
    state, total = policy.initial_state(len(rows_RT)), torch.zeros(())
    for slices_RK in rows_RT.split(slice_len, 1):
        is_init_RK, recorded_RK = slices_RK[IS_INIT], slices_RK[RECORDED]
        # States are read only at the first step, and where an episode begins, where they are zero.
        entering = {
            key: functional.pad(value.unsqueeze(1), (0, 0) * (value.ndim - 1) + (0, slices_RK.shape[1] - 1))
            for key, value in policy.reset(state, is_init_RK[:, 0]).items()
        }
        entering |= {key: slices_RK[key] for key in policy.input_keys if key in slices_RK}
        distribution, _, states, _ = policy.sequence(slices_RK[OBSERVATION], entering, is_init_RK)
        log_prob = distribution.log_prob(slices_RK[ACTION])[recorded_RK]
        require(bool(log_prob.isfinite().all()), "pretraining: the log-likelihood is not finite. Set a smaller lr.")
        optimizer.zero_grad()
        (-log_prob.sum() / recorded_RK.numel()).backward()
        nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], MAX_NORM)
        optimizer.step()
        state = {key: value[:, -1].detach() for key, value in states.items()}
        total = total + log_prob.detach().double().sum().cpu()
    return float(total / rows_RT[RECORDED].sum())


# Reading


def read_episodes(folder: Path, policy: Policy, env: EnvConfig) -> list[TensorDictBase]:
    """The episodes in the ``.npz`` files of a folder, in the order of their names, with the policy's entries.

    Each file holds the arrays of one episode of T steps: ``observations`` ``[T, ...]`` or ``[T + 1, ...]`` and
    ``actions`` ``[T, ...]``, as the plain environment returned and took them; for dicts and tuples, one array per entry
    (``observations.goal``, ``actions.0``). ``rewards`` ``[T]`` and ``action_masks`` are needed only by policies
    that see the previous reward, or an action mask from the info.

    Raises:
        ConfigError: there are no files, or one is damaged or does not fit the environment; the message names it.
    """
    files = sorted(path for path in folder.glob("*.npz") if path.is_file())
    require(
        bool(files),
        f"pretrain.folder={folder} {'holds no .npz files' if folder.is_dir() else 'is not a folder'}. Set it to a "
        "folder of recorded episodes, one .npz file each; see docs/pretraining.md.",
    )
    interface = NamedInterface(env, policy.critic_only)
    return [_episode(file, policy, interface) for file in files]


def _episode(file: Path, policy: Policy, interface: NamedInterface) -> TensorDictBase:
    """The episode ``[T]`` of one file, with the policy's entries."""
    arrays, what, page = _arrays(file), f"{file} is not an episode of {interface.env.id}", "See docs/pretraining.md."
    first = arrays.get(_plural(interface.actions[0].name, ACTION))
    steps = 0 if first is None or first.ndim == 0 else len(first)

    def read(entry: NamedArray, name: str) -> Tensor:
        """Checks an array, and returns it as a tensor of ``steps`` steps, without an observation after the last."""
        require(name in arrays, f"{what}: it holds {', '.join(arrays) or 'nothing'} and lacks {name}. {page}")
        require(steps > 0, f"{what}: the actions hold no steps. {page}")
        array = arrays[name]
        array = array[:steps] if array.ndim and len(array) == steps + 1 and entry is not REWARD else array
        return entry.read(array, (steps,), f"{what}. {page}", name=f"{file}: {name}")

    inputs = {entry.name: read(entry, _plural(entry.name, ACTION)) for entry in interface.actions}
    actions = interface.policy_action({entry.path: inputs[entry.name] for entry in interface.actions})
    action = actions[()] if () in actions else TensorDict(actions, [steps])
    clipped = interface.env_action(action)
    for entry in interface.actions:
        require(
            torch.allclose(inputs[entry.name], clipped[entry.path], rtol=_ROUNDING, atol=1e-6),
            f"{what}: {_plural(entry.name, ACTION)} lies outside {entry.space}: record actions as the environment "
            f"takes them. {page}",
        )
    inputs |= {entry.name: read(entry, _plural(entry.name, OBSERVATION)) for entry in interface.observed}
    if ACTION_MASK in interface.added:
        inputs[ACTION_MASK] = read(interface.added[ACTION_MASK], "action_masks")
    mask = inputs.get(ACTION_MASK, inputs.get(f"{OBSERVATION}.{ACTION_MASK}"))
    if mask is not None:
        one_hot_action = PreviousAction(policy.action_spec)(action)
        require(bool((one_hot_action <= mask).all()), f"{what}: a mask forbids the action that was taken. {page}")
    if PREVIOUS_REWARD in interface.added:
        inputs[PREVIOUS_REWARD] = read(REWARD, "rewards").reshape(steps, 1).roll(1, 0)
    is_init = torch.arange(steps) == 0
    entries = {OBSERVATION: interface.policy_observation(inputs, is_init), ACTION: action, IS_INIT: is_init}
    if policy.previous_action is not None:
        previous = policy.previous_action(action.to(policy.device)).cpu().roll(1, 0)
        entries[PREVIOUS_ACTION] = reset_state(previous, is_init)
    return TensorDict({**entries, RECORDED: torch.ones_like(is_init)}, [steps])


def _plural(name: str, root: str) -> str:
    """The name of the array in a file: observations.goal for observation.goal."""
    return f"{root}s{name.removeprefix(root)}"


def _arrays(file: Path) -> dict[str, Array]:
    """The arrays of a file; nothing in it is executed.

    Raises:
        ConfigError: it is not an ``.npz`` file of arrays, or too large.
    """
    advice = "Write it with numpy.savez or numpy.savez_compressed, from arrays of numbers."
    with user_code(f"{file} cannot be read: it fails", advice):
        with zipfile.ZipFile(file) as members:
            size = sum(member.file_size for member in members.infolist())
        require(size <= _MAX_BYTES, f"{file} would take {size} bytes of memory. Write one episode per file.")
        with np.load(file, allow_pickle=False) as stored:
            return {name: np.asarray(stored[name]) for name in stored}
