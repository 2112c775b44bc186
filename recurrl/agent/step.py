"""One step of acting as one module: from raw observations to the environment's own actions.

The same module acts in Python and is exported. It is ``Policy.step`` with a :class:`NamedInterface` on both sides.

Shape legend: B environments.
"""

from typing import Any

from torch import nn
from torch.distributions import Distribution, Independent, Normal

from recurrl.agent.named_arrays import NamedInterface, Tensors
from recurrl.keys import ACTION, name_of, path_of
from recurrl.policy import Policy
from recurrl.policy.distributions import Joint, LazyCategorical, SquashedGaussian
from recurrl.policy.noise import NOISE
from recurrl.recurrent.module.keys import IS_INIT

NOISE_INPUT = "noise"
NEXT = "next."


class Step(nn.Module):
    """Maps inputs by name to outputs by name, all with the batch as their first dimension.

    Inputs: the entries of the observation; ``action_mask`` if it comes with the info; ``previous_reward`` if the policy
    sees it; the states; ``is_init``, true where an episode begins, which makes the states and the previous reward zero;
    and ``noise`` if actions are sampled, fresh standard normal numbers for each step.

    Outputs: the entries of the action; ``next.`` and the name of each state; ``distribution.`` and the parameters of
    each part's distribution (``logits``, or ``mean`` and ``std``, those of continuous actions normalised).

    Args:
        policy: the policy; the step always uses its current parameters.
        interface: the interface between the policy and its environment.
    """

    def __init__(self, policy: Policy, interface: NamedInterface) -> None:
        super().__init__()
        self.policy, self.interface = policy.actor(), interface

    def state_shapes(self, sampled: bool) -> dict[str, tuple[int, ...]]:
        """The shape of each state of one environment, by name. Episodes begin with zeros.

        Args:
            sampled: include the noise of actions, if it is correlated from step to step.
        """
        shapes = {name_of(key): shape for key, shape in self.policy.state_shapes.items()}
        return shapes | ({NOISE: (self.policy.noise_size,)} if sampled and self.policy.noise is not None else {})

    def forward(self, inputs: Tensors) -> Tensors:
        """Acts once in each of B environments."""
        begins_B = inputs[IS_INIT]
        observation = self.interface.policy_observation(inputs, begins_B)
        state = {key: inputs[name_of(key)] for key in self.policy.carried_keys if name_of(key) in inputs}
        acted = self.policy.step(observation, state, begins_B, inputs.get(NOISE_INPUT))
        actions = self.interface.env_action(acted.action)
        outputs = {name_of((ACTION, *path)): value for path, value in actions.items()}
        outputs |= {NEXT + name_of(key): value for key, value in acted.state.items()}
        joint = acted.distribution.parts if isinstance(acted.distribution, Joint) else {(): acted.distribution}
        for path, part in joint.items():
            named = {name_of(("distribution", *path_of(path), key)): value for key, value in _parameters(part).items()}
            outputs |= named
        return outputs


def _parameters(distribution: Distribution) -> Tensors:
    """The parameters of the distribution of one part of an action: ``logits``, or ``mean`` and ``std``."""
    inner: Any = distribution.base if isinstance(distribution, SquashedGaussian) else distribution
    base: Any = inner.base_dist if isinstance(inner, Independent) else inner
    if isinstance(base, Normal):
        return {"mean": base.loc, "std": base.scale}
    return {"logits": base.unnormalized if isinstance(base, LazyCategorical) else base.logits}
