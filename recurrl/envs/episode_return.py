"""The running return of an episode."""

import torch
from tensordict import TensorDictBase
from torchrl.data import Composite
from torchrl.envs import RewardSum


class EpisodeReturn(RewardSum):
    """TorchRL's running sum of an episode's rewards, in float64: sums in float32 drift within long episodes."""

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        reset: TensorDictBase = super()._reset(tensordict, tensordict_reset)
        for key in self.out_keys:
            reset.set(key, reset.get(key).double())
        return reset

    def _generate_episode_reward_spec(self) -> Composite:
        spec: Composite = super()._generate_episode_reward_spec()
        for key in self.out_keys:
            spec[key] = spec[key].to(torch.float64)
        return spec
