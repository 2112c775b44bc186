"""The policy as a TensorDict module, for TorchRL's collectors, environments and losses."""

from typing import Any

from tensordict import NestedKey, TensorDictBase
from tensordict.nn import InteractionType, TensorDictModuleBase
from tensordict.nn.probabilistic import interaction_type
from torch.distributions import Distribution

from recurrl.keys import ACTION, LOG_PROB, OBSERVATION, VALUE
from recurrl.policy.distributions import act
from recurrl.policy.noise import NOISE
from recurrl.policy.policy import Output, Policy
from recurrl.recurrent import recurrent_mode
from recurrl.recurrent.module.keys import IS_INIT


class PolicyModule(TensorDictModuleBase):
    """A policy as a TensorDict module. It writes the action, its log-probability, the value if any, and the states.

    It does one step, or sequences under TorchRL's ``set_recurrent_mode(True)``. Actions are sampled under
    ``ExplorationType.RANDOM``, as in TorchRL's collectors, and deterministic otherwise.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        states = policy.state_keys
        self.in_keys = [OBSERVATION, *([IS_INIT, *states] if states else [])]
        values = [] if policy.critic_head is None else [VALUE]
        self.out_keys = [ACTION, LOG_PROB, *values, *(("next", state) for state in states)]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Acts for one step or for sequences."""
        deterministic = interaction_type() is not InteractionType.RANDOM
        if recurrent_mode():
            distribution, value, new_state = self._sequence(tensordict)
            action, log_prob = act(distribution, deterministic)
        else:
            observation, state, is_init = self.policy.inputs(self._read(tensordict).reshape(-1))
            if NOISE in tensordict:
                state = {**state, NOISE: tensordict[NOISE].flatten(0, -3)}
            action, log_prob, value, new_state = self.policy.step(observation, state, is_init, deterministic)
        batch, lead = tensordict.batch_size, log_prob.ndim
        written: dict[NestedKey, Any] = {ACTION: action, LOG_PROB: log_prob, VALUE: value}
        written |= {("next", key): state for key, state in new_state.items()}
        for key in (*self.out_keys, *([("next", NOISE)] if NOISE in new_state else [])):
            tensordict.set(key, written[key].reshape((*batch, *written[key].shape[lead:])))
        return tensordict

    def get_dist(self, tensordict: TensorDictBase) -> Distribution:
        """The distribution of the actions of sequences, for TorchRL's losses."""
        return self._sequence(tensordict)[0]

    def _sequence(self, tensordict: TensorDictBase) -> Output:
        data = self._read(tensordict)
        return self.policy.sequence(*self.policy.inputs(data.reshape(-1, data.batch_size[-1])))

    def _read(self, tensordict: TensorDictBase) -> TensorDictBase:
        missing = [key for key in self.in_keys if tensordict.get(key, None) is None]
        if missing:
            raise KeyError(
                f"The policy needs the entries {missing}, which the TensorDict lacks. Build the environment with "
                "recurrl.envs.make_env(..., policy=policy), or append torchrl.envs.InitTracker() and the primers of "
                "torchrl.modules.utils.get_primers_from_module(policy) to it."
            )
        return tensordict.select(*self.in_keys)
