"""The policy as a TensorDict module, for TorchRL's collectors, environments and losses.

Shape legend: B rows, T steps.
"""

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import InteractionType, TensorDictModuleBase
from tensordict.nn.probabilistic import interaction_type
from torch import Size, Tensor
from torch.distributions import Distribution

from recurrl.keys import ACTION, IS_INIT, LOG_PROB, NOISE, OBSERVATION, VALUE
from recurrl.policy.policy import Policy, SequenceOutput, StepOutput
from recurrl.recurrent import recurrent_mode
from recurrl.recurrent.segments import only_ends


class PolicyModule(TensorDictModuleBase):
    """A policy as a TensorDict module. It writes the action, its log-probability, the value if any, and the states.

    It runs one step, or sequences under TorchRL's ``set_recurrent_mode(True)``. Actions are sampled under
    ``ExplorationType.RANDOM``, as in TorchRL's collectors, and deterministic otherwise.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        states, read = policy.state_keys, policy.input_keys
        self.in_keys = [OBSERVATION, *([IS_INIT, *read] if read else [])]
        values = [] if policy.critic_head is None else [VALUE]
        self.out_keys = [ACTION, LOG_PROB, *values, *(("next", state) for state in states)]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Acts for one step or for sequences."""
        sampled, batch = interaction_type() is InteractionType.RANDOM, tensordict.batch_size
        output: StepOutput | SequenceOutput
        if recurrent_mode():
            output = self._sequence(tensordict)
            action = self.policy.action(output.distribution, self._noise(output.distribution.batch_shape, sampled))
            log_prob = output.distribution.log_prob(action)
        else:
            observation, state, is_init = self.policy.inputs(self._read(tensordict).reshape(-1))
            if NOISE in tensordict:
                state = {**state, NOISE: tensordict[NOISE].flatten(0, -2)}
            output = self.policy.step(observation, state, is_init, self._noise(Size([batch.numel()]), sampled))
            action, log_prob = output.action, output.log_prob
        written = TensorDict({ACTION: action, LOG_PROB: log_prob, "next": dict(output.state)}, log_prob.shape)
        if output.value is not None:
            written[VALUE] = output.value
        return tensordict.update(written.reshape(batch))

    def _noise(self, shape: Size, sampled: bool) -> Tensor | None:
        return torch.randn(*shape, self.policy.noise_size, device=self.policy.device) if sampled else None

    def get_dist(self, tensordict: TensorDictBase) -> Distribution:
        """The distribution of the actions of sequences, for TorchRL's losses."""
        return self._sequence(tensordict).distribution

    def _sequence(self, tensordict: TensorDictBase) -> SequenceOutput:
        data = self._read(tensordict)
        observation, state, is_init_BT = self.policy.inputs(data.reshape(-1, data.batch_size[-1]))
        output = self.policy.sequence(observation, state, is_init_BT)
        if is_init_BT is None:
            return output
        ends = only_ends(output.state.values(), is_init_BT)
        return output._replace(state=dict(zip(output.state, ends, strict=True)))

    def _read(self, tensordict: TensorDictBase) -> TensorDictBase:
        missing = [key for key in self.in_keys if tensordict.get(key, None) is None]
        if missing:
            raise KeyError(
                f"The policy needs the entries {missing}, which the TensorDict lacks. Build the environment with "
                "recurrl.envs.make_env(..., policy=policy), or append torchrl.envs.InitTracker() and the primers of "
                "torchrl.modules.utils.get_primers_from_module(policy) to it."
            )
        return tensordict.select(*self.in_keys)
