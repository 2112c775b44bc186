"""A loop of TorchRL's components, assembled as in its tutorials on recurrent policies and PPO."""

import torch
from tensordict import TensorDictBase
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from tensordict.nn import TensorDictSequential as Sequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import Compose, EnvBase, GymWrapper, InitTracker, RewardSum, SerialEnv, StepCounter, TransformedEnv
from torchrl.modules import GRUModule, LSTMModule, OneHotCategorical, set_recurrent_mode
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from benchmarks.peers.task import ACTIONS, OBSERVATION_SIZE, Task, masked_cartpole

CELLS = {"gru": GRUModule, "lstm": LSTMModule}


class TorchRLLoop:
    """TorchRL's collector, GAE, buffer and loss."""

    def __init__(self, task: Task) -> None:
        self.task = task
        encoder = nn.Sequential(nn.Linear(OBSERVATION_SIZE, task.hidden), nn.Tanh())
        rnn = CELLS[task.cell](task.hidden, task.hidden, in_key="encoded", out_key="features")
        trunk = Sequential(TensorDictModule(encoder, ["observation"], ["encoded"]), rnn)
        actor = ProbabilisticTensorDictSequential(
            trunk,
            TensorDictModule(nn.Linear(task.hidden, ACTIONS), ["features"], ["logits"]),
            ProbabilisticTensorDictModule(
                ["logits"], ["action"], distribution_class=OneHotCategorical, return_log_prob=True
            ),
        )
        critic = Sequential(trunk, TensorDictModule(nn.Linear(task.hidden, 1), ["features"], ["state_value"]))

        self.rnn, self.actor = rnn, actor
        env = self.make_env(task.envs)
        env.set_seed(task.seed)
        self.batches = iter(Collector(env, actor, frames_per_batch=task.frames, total_frames=-1, trust_policy=True))
        self.advantage = GAE(
            gamma=task.gamma,
            lmbda=task.lmbda,
            value_network=critic,
            deactivate_vmap=True,  # recurrent modules do not run under vmap
        )
        self.loss = ClipPPOLoss(actor, critic, clip_epsilon=task.clip, entropy_coeff=0.0)
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr=task.lr)
        self.buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(task.envs),
            sampler=SamplerWithoutReplacement(),
            batch_size=task.envs // task.minibatches,
        )

    def make_env(self, count: int) -> EnvBase:
        """This many environments, stepped serially."""

        def make_one() -> EnvBase:
            transforms = Compose(InitTracker(), self.rnn.make_tensordict_primer())
            return TransformedEnv(GymWrapper(masked_cartpole()), transforms)

        return TransformedEnv(SerialEnv(count, make_one), Compose(StepCounter(), RewardSum()))

    def collect(self) -> None:
        """Collects one batch of rows."""
        self.batch: TensorDictBase = next(self.batches)

    def learn(self) -> None:
        """Computes advantages with the critic, then trains on minibatches of whole rows."""
        with set_recurrent_mode(True):
            with torch.no_grad():
                self.advantage(self.batch)
            self.buffer.empty()
            self.buffer.extend(self.batch)
            for _ in range(self.task.epochs * self.task.minibatches):
                losses = self.loss(self.buffer.sample())
                (losses["loss_objective"] + losses["loss_critic"]).backward()
                nn.utils.clip_grad_norm_(self.loss.parameters(), 0.5)
                self.optimizer.step()
                self.optimizer.zero_grad()


def make(task: Task) -> TorchRLLoop:
    """Creates the loop."""
    torch.manual_seed(task.seed)
    return TorchRLLoop(task)
