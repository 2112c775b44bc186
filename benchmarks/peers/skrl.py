"""skrl's PPO_RNN, with a model as in its examples for recurrent policies.

Shape legend: N environments, M rows of a minibatch, T steps.
"""

import tempfile
from typing import Any

import gymnasium
import torch
from skrl.agents.torch.ppo import PPO_CFG, PPO_RNN
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from torch import Tensor, nn

from benchmarks.peers.task import ACTIONS, OBSERVATION_SIZE, Task, masked_cartpole

CELLS = {"gru": nn.GRU, "lstm": nn.LSTM}


class Network(CategoricalMixin, DeterministicMixin, Model):
    """Policy and value on one trunk. Sequences run in pieces between the steps at which any row's episode ends."""

    def __init__(self, env: Any, task: Task) -> None:
        spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
        Model.__init__(self, **spaces, device="cpu")
        CategoricalMixin.__init__(self, role="policy")
        DeterministicMixin.__init__(self, role="value")
        self.task, self.states = task, 2 if task.cell == "lstm" else 1
        self.encoder = nn.Sequential(nn.Linear(OBSERVATION_SIZE, task.hidden), nn.Tanh())
        self.cell = CELLS[task.cell](task.hidden, task.hidden, batch_first=True)
        self.actor, self.critic = nn.Linear(task.hidden, ACTIONS), nn.Linear(task.hidden, 1)
        self._shared: tuple[Tensor, dict[str, Any]] | None = None

    def get_specification(self) -> dict[str, Any]:
        """The states' sizes, for the agent's memory."""
        sizes = [(1, self.task.envs, self.task.hidden)] * self.states
        return {"rnn": {"sequence_length": self.task.steps, "sizes": sizes}}

    def act(self, inputs: dict[str, Any], *, role: str = "") -> tuple[Tensor, dict[str, Any]]:
        """A sampled action, or the value."""
        mixin: Any = CategoricalMixin if role == "policy" else DeterministicMixin
        returned: tuple[Tensor, dict[str, Any]] = mixin.act(self, inputs, role=role)
        return returned

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
        """Logits or values. The trunk runs once for both, as in skrl's shared models."""
        if role == "value" and self._shared is not None:
            features, outputs = self._shared
            self._shared = None
            return self.critic(features), outputs
        shared = self._trunk(inputs)
        self._shared = shared if role == "policy" else None
        features, outputs = shared
        return (self.actor if role == "policy" else self.critic)(features), dict(outputs)

    def _trunk(self, inputs: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        encoded, states = self.encoder(inputs["observations"]), inputs["rnn"]
        if not self.training:
            output, left = self.cell(encoded.unsqueeze(1), self._cell_state([state.contiguous() for state in states]))
            return output.flatten(0, 1), {"rnn": self._list(left)}
        steps = self.task.steps
        encoded_MT = encoded.view(-1, steps, self.task.hidden)
        states = [state.view(1, -1, steps, self.task.hidden)[:, :, 0].contiguous() for state in states]
        ends_MT = (inputs["terminated"] | inputs["truncated"]).view(-1, steps)
        pieces, begin = [], 0
        for end in [*(ends_MT[:, :-1].any(0).nonzero().flatten() + 1).tolist(), steps]:
            output, left = self.cell(encoded_MT[:, begin:end], self._cell_state(states))
            states = [state * (~ends_MT[:, end - 1]).view(1, -1, 1) for state in self._list(left)]
            pieces.append(output)
            begin = end
        return torch.cat(pieces, 1).flatten(0, 1), {"rnn": states}

    def _cell_state(self, states: list[Tensor]) -> Any:
        return tuple(states) if self.states == 2 else states[0]

    def _list(self, states: Any) -> list[Tensor]:
        return list(states) if self.states == 2 else [states]


class SkrlLoop:
    """The agent's interaction as in skrl's trainers, and its update."""

    def __init__(self, task: Task) -> None:
        self.task = task
        vector = gymnasium.vector.SyncVectorEnv([masked_cartpole] * task.envs)
        self.env: Any = wrap_env(vector, wrapper="gymnasium", verbose=False)
        network = Network(self.env, task)
        config = {
            "rollouts": task.steps,
            "learning_epochs": task.epochs,
            "mini_batches": task.minibatches,
            "discount_factor": task.gamma,
            "gae_lambda": task.lmbda,
            "learning_rate": task.lr,
            "ratio_clip": task.clip,
            "value_clip": 0.0,
            "value_loss_scale": 0.5,
            "experiment": {"directory": tempfile.mkdtemp(), "write_interval": 0, "checkpoint_interval": 0},
        }
        self.agent: Any = PPO_RNN(
            models={"policy": network, "value": network},
            memory=RandomMemory(memory_size=task.steps, num_envs=task.envs, device="cpu"),
            observation_space=self.env.observation_space,
            action_space=self.env.action_space,
            device="cpu",
            cfg=PPO_CFG(**config),
        )
        self.agent.init()
        self.agent.enable_training_mode(True)
        self.agent.enable_models_training_mode(False)
        self.observation, _ = self.env.reset()

    @torch.no_grad()
    def collect(self) -> None:
        """Steps the environments for an iteration's frames."""
        for _ in range(self.task.steps):
            arguments = {"timestep": 0, "timesteps": 2**40}
            action, _ = self.agent.act(self.observation, None, **arguments)
            after, reward, terminated, truncated, infos = self.env.step(action)
            self.agent.record_transition(
                observations=self.observation,
                states=None,
                actions=action,
                rewards=reward,
                next_observations=after,
                next_states=None,
                terminated=terminated,
                truncated=truncated,
                infos=infos,
                **arguments,
            )
            self.observation = after

    def learn(self) -> None:
        """Trains on the collected frames."""
        self.agent.enable_models_training_mode(True)
        self.agent.update(timestep=0, timesteps=2**40)
        self.agent.enable_models_training_mode(False)


def make(task: Task) -> SkrlLoop:
    """Creates the loop."""
    torch.manual_seed(task.seed)
    return SkrlLoop(task)
