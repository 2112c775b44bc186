"""Memory tasks in torch, on any device: a few tensor operations step thousands of environments.

Shape legend: N environments, C cards.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torchrl.data import Categorical, TensorSpec, Unbounded

from recurrl.config.plugins import is_custom, load
from recurrl.envs.arguments import check_arguments
from recurrl.envs.batched import BatchedEnv, Tensors
from recurrl.envs.source import Source
from recurrl.errors import ConfigError, UnsavableError, require
from recurrl.keys import OBSERVATION, PRIVILEGED


class MemoryTaskSource(Source):
    """Makes a task of :data:`TASKS`, or a custom one named by ``module:Class``."""

    supported_options = ("kwargs", "max_episode_steps")

    def task(self) -> type[MemoryTask]:
        """The class of the task.

        Raises:
            ConfigError: there is no such task.
        """
        name = self.options.id
        task = load(name, f"env.id={name}") if is_custom(name) else TASKS.get(name)
        if inspect.isclass(task) and issubclass(task, MemoryTask):
            return task
        raise ConfigError(
            f"env.id={name} is not a memory task. Choose one of: {', '.join(TASKS)}; or use module:Class, a MemoryTask "
            "of your own."
        )

    def check(self) -> None:
        """Rejects unknown tasks and arguments."""
        super().check()
        kwargs, ours = self.options.kwargs, ("num_envs", "max_steps")
        check_arguments(self.task(), kwargs, f"env.id={self.options.id}", "env.kwargs.", ours)

    def make(self, num_envs: int) -> BatchedEnv:
        """The task, with ``num_envs`` environments."""
        make: Any = self.task()
        return make(num_envs, max_steps=self.options.max_episode_steps, **self.options.kwargs)


make = MemoryTaskSource


class MemoryTask(BatchedEnv):
    """The base of the tasks: a clock, a time limit, seeds, and partial resets.

    It has its own random number generator. Every reset draws equally many random numbers, whichever environments
    it resets.

    Args:
        num_envs: environments, N.
        observation: spec of the observation of all environments.
        actions: number of actions.
        max_steps: steps after which an episode is truncated; None for no limit.
        device: the device of all tensors.
    """

    def __init__(
        self, num_envs: int, observation: TensorSpec, actions: int, max_steps: int | None, device: str
    ) -> None:
        action = Categorical(actions, shape=(num_envs,), device=device)
        super().__init__(num_envs, {"observation": observation}, action, device)
        self.max_steps = max_steps
        self.time = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._generator = torch.Generator(device)
        self._adds_privileged = False

    def show_privileged(self) -> None:
        """Adds what :meth:`privileged` returns, if it is defined, to observations, as the entry ``privileged``."""
        privileged = self.privileged()
        if privileged is not None:
            self.add_privileged(privileged)
            self._adds_privileged = True

    @abstractmethod
    def begin(self, chosen: Tensor) -> None:
        """Draws the hidden state of new episodes in the chosen environments ``[N]``."""

    @abstractmethod
    def move(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Applies actions ``[N]``. Returns the rewards ``[N]`` and which episodes terminate ``[N]``.

        ``time`` already includes this step: it is 1 at the first.
        """

    @abstractmethod
    def observe(self) -> Tensor:
        """The current observation ``[N, ...]``, in new memory."""

    def privileged(self) -> Tensor | None:
        """What the observation hides ``[N, ...]``, for a critic: float32, in new memory; None if undefined."""
        return None

    def _observed(self) -> Tensors:
        privileged = self.privileged() if self._adds_privileged else None
        return {OBSERVATION: self.observe()} | ({} if privileged is None else {PRIVILEGED: privileged})

    def reset_tensors(self, mask: Tensor | None) -> Tensors:
        """Starts new episodes. Random numbers are drawn whether or not one starts."""
        mask_N = torch.ones_like(self.time, dtype=torch.bool) if mask is None else mask.reshape(-1)
        self.time.masked_fill_(mask_N, 0)
        self.begin(mask_N)
        return self._observed()

    def step_tensors(self, action: Tensor) -> Tensors:
        """Steps all environments."""
        self.time += 1
        reward, terminated = self.move(action)
        late = torch.zeros_like(terminated) if self.max_steps is None else self.time >= self.max_steps
        truncated = late & ~terminated
        results = {"reward": reward, "terminated": terminated, "truncated": truncated, "done": terminated | truncated}
        return {**self._observed(), **{name: values.unsqueeze(-1) for name, values in results.items()}}

    def save_episodes(self) -> dict[str, Any]:
        """The task's tensors, and the state of its generator."""
        tensors = {name: value.clone() for name, value in vars(self).items() if isinstance(value, Tensor)}
        return {"tensors": tensors, "generator": self._generator.get_state()}

    def restore_episodes(self, state: dict[str, Any]) -> None:
        """Restores what :meth:`save_episodes` returned."""
        if any(getattr(self, name).shape != value.shape for name, value in state["tensors"].items()):
            raise UnsavableError("the number of environments or the task's arguments have changed")
        for name, value in state["tensors"].items():
            setattr(self, name, value.to(self.device))
        self._generator.set_state(state["generator"])

    def draw(self, high: int, *shape: int) -> Tensor:
        """Integers from 0 to ``high`` − 1."""
        return torch.randint(high, shape, generator=self._generator, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)


NORTH, EAST, SOUTH, WEST = range(4)


class TMaze(MemoryTask):
    """A corridor with a sign at its western end that says which way to turn at the junction at its eastern end.

    Bakker 2001, "Reinforcement learning with long short-term memory". Actions are north, east, south and west. The
    agent sees three bits: 011 at a sign to the north, 110 at one to the south, 101 in the corridor, 010 at the
    junction. A turn at the junction ends the episode, with reward 4 in the direction of the sign and −0.1 otherwise;
    standing still, against a wall, costs 0.1. In the active task the agent starts a step east of the sign, and has to
    go and look.

    Args:
        num_envs: environments, N.
        length: steps from the sign to the junction.
        active: true if the agent has to look for the sign.
        max_steps: steps after which an episode is truncated; None for no limit.
        device: the device of all tensors.
    """

    def __init__(
        self, num_envs: int, length: int, active: bool = False, max_steps: int | None = None, device: str = "cpu"
    ) -> None:
        require(length > active, f"env.kwargs.length must be at least {1 + active} (got {length}).")
        super().__init__(num_envs, Unbounded((num_envs, 3), device=device), 4, max_steps, device)
        self.length, self.start = length, int(active)
        self.position = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.way = torch.zeros(num_envs, dtype=torch.int64, device=device)
        """The sign: ``NORTH`` or ``SOUTH``."""
        bits = [[0, 1, 1], [1, 1, 0], [1, 0, 1], [0, 1, 0]]
        self._bits = torch.tensor(bits, dtype=torch.float32, device=device)

    def begin(self, chosen: Tensor) -> None:
        """Draws the sign."""
        self.way = torch.where(chosen, self.draw(2, self.time.shape[0]) * SOUTH, self.way)
        self.position.masked_fill_(chosen, self.start)

    def move(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Moves along the corridor, or ends the episode by a turn at the junction."""
        turned = (self.position == self.length) & ((action == NORTH) | (action == SOUTH))
        position = (self.position + (action == EAST).long() - (action == WEST).long()).clamp(0, self.length)
        still = position == self.position
        self.position = position
        reward = torch.where(turned & (action == self.way), 4.0, torch.where(still, -0.1, 0.0))
        return reward, turned

    def observe(self) -> Tensor:
        """The bits of the agent's position."""
        place = torch.where(self.position == self.length, 3, 2)
        return self._bits[torch.where(self.position == 0, self.way // SOUTH, place)]

    def privileged(self) -> Tensor:
        """The sign, 1 for the south, and the fraction of the corridor behind the agent."""
        return torch.stack((self.way // SOUTH, self.position / self.length), -1).float()


class MemoryChain(MemoryTask):
    """The agent sees bits at the beginning, and is asked for one of them ``length`` steps later.

    The task of bsuite (Osband et al. 2020, https://arxiv.org/abs/1908.03568), step for step: the observation is the
    time left, the index of the queried bit (seen before the last action, otherwise zero) and the bits as ±1 (seen
    before the first two, otherwise zero). The last of ``length`` + 1 actions should be the bit's value: its reward is 1
    if it is, else −1.

    Args:
        num_envs: environments, N.
        length: bsuite's ``memory_length``.
        bits: the number of bits.
        max_steps: steps after which an episode is truncated; None for no limit.
        device: the device of all tensors.
    """

    def __init__(
        self, num_envs: int, length: int, bits: int = 1, max_steps: int | None = None, device: str = "cpu"
    ) -> None:
        for name, value in (("length", length), ("bits", bits)):
            require(value >= 1, f"env.kwargs.{name} must be at least 1 (got {value}).")
        super().__init__(num_envs, Unbounded((num_envs, bits + 2), device=device), 2, max_steps, device)
        self.length, self.bits = length, bits
        self.context = torch.zeros(num_envs, bits, dtype=torch.int64, device=device)
        self.query = torch.zeros(num_envs, dtype=torch.int64, device=device)

    def begin(self, chosen: Tensor) -> None:
        """Draws the bits, and the index of the queried one."""
        count = self.time.shape[0]
        self.context = torch.where(chosen.unsqueeze(-1), self.draw(2, count, self.bits), self.context)
        self.query = torch.where(chosen, self.draw(self.bits, count), self.query)

    def move(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Rewards the last step's action if it is the queried bit."""
        ends = self.time == self.length + 1
        bit = self.context.gather(1, self.query.unsqueeze(-1)).squeeze(-1)
        return torch.where(ends, torch.where(action == bit, 1.0, -1.0), 0.0), ends

    def observe(self) -> Tensor:
        """The time left, the index of the queried bit, and the bits."""
        # bsuite's first step shows the reset's observation again: its clock runs one behind.
        clock = (self.time - 1).clamp(min=0)
        left = 1 - clock / self.length
        query = torch.where(clock == self.length - 1, self.query, 0)
        bits = torch.where((clock == 0).unsqueeze(-1), 2 * self.context - 1, 0)
        return torch.cat((left.unsqueeze(-1), query.unsqueeze(-1), bits), -1).float()

    def privileged(self) -> Tensor:
        """The index of the queried bit, and the bits."""
        return torch.cat((self.query.unsqueeze(-1), 2 * self.context - 1), -1).float()


class RepeatPrevious(MemoryTask):
    """Cards are dealt one by one; each action should be the suit of the card seen ``k`` − 1 steps before.

    The task of POPGym (Morad et al. 2023, https://arxiv.org/abs/2303.01859): 52 cards a deck, without replacement;
    rewards of ±1 / (cards − k) from the k-th action on, so that the return is between −1 and 1.

    Args:
        num_envs: environments, N.
        k: 1 asks for the card that is seen now. POPGym's easy task has 4, medium 32, hard 64.
        decks: the number of decks. POPGym's easy task has 1, medium 2, hard 3.
        max_steps: steps after which an episode is truncated; None for no limit.
        device: the device of all tensors.
    """

    def __init__(
        self, num_envs: int, k: int = 4, decks: int = 1, max_steps: int | None = None, device: str = "cpu"
    ) -> None:
        count = 52 * decks
        require(1 <= k < count, f"env.kwargs.k must be from 1 to {count - 1} with {decks} decks (got {k}).")
        super().__init__(num_envs, Categorical(4, shape=(num_envs,), device=device), 4, max_steps, device)
        self.k, self.count = k, count
        self.cards = torch.zeros(num_envs, count, dtype=torch.int64, device=device)
        """The suits in the order in which they are dealt, ``[N, C]``."""
        self._suits = torch.arange(count, device=device) % 4

    def begin(self, chosen: Tensor) -> None:
        """Shuffles the deck."""
        noise = torch.rand(self.cards.shape, generator=self._generator, device=self.device)
        self.cards = torch.where(chosen.unsqueeze(-1), self._suits[noise.argsort(-1)], self.cards)

    def move(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Rewards the suit of the card seen ``k`` − 1 steps before."""
        suit = self.cards.gather(1, (self.time - self.k).clamp(min=0).unsqueeze(-1)).squeeze(-1)
        unit = 1 / (self.count - self.k)
        reward = torch.where(self.time >= self.k, torch.where(action == suit, unit, -unit), 0.0)
        return reward, self.time == self.count - 1

    def observe(self) -> Tensor:
        """The card dealt last."""
        return self.cards.gather(1, self.time.unsqueeze(-1)).squeeze(-1)

    def privileged(self) -> Tensor:
        """The suit that the next action should name, as a one-hot vector; zeros before the first such action."""
        place = self.time + 1 - self.k
        suit = self.cards.gather(1, place.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return functional.one_hot(suit, 4).float() * (place >= 0).unsqueeze(-1)


TASKS = {"t_maze": TMaze, "memory_chain": MemoryChain, "repeat_previous": RepeatPrevious}
"""The tasks by their ids."""
