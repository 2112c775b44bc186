"""Losses and gradients of GRPO on one fixed batch, in float64; those of PPO are compared with TorchRL's.

The numbers were written down once, when the losses equalled TorchRL's (``test_grpo.py``). A change of the maths
shows here as a change of a number. Weights and data are sines: no generator of random numbers matters.
"""

import pytest
import torch
from tensordict import TensorDict
from test_grpo import diagonal
from torch import nn
from torch.distributions import Categorical

from recurrl.build import make_algorithm
from recurrl.policy import Policy, Trunk
from recurrl.policy.distributions import ActionHead
from recurrl.recurrent import RecurrentModule

B, T, H = 4, 6, 4


def sines(*shape, phase):
    return torch.sin(phase + 0.7 * torch.arange(torch.Size(shape).numel(), dtype=torch.float64)).reshape(shape)


def make_policy(continuous):
    """A cell and two heads, put together here so that the numbers stay when networks get other layers."""
    cell = RecurrentModule("gru", 2, H, recurrent_backend="reference", in_key="encoded", out_key="features")
    actor = ActionHead(nn.Linear(H, 2), diagonal if continuous else lambda logits: Categorical(logits=logits))
    policy = Policy(Trunk(nn.Identity(), cell), actor, nn.Linear(H, 1)).double()
    for i, parameter in enumerate(policy.parameters()):
        parameter.data = 0.5 * sines(*parameter.shape, phase=float(i))
    return policy


def losses_and_gradient(compose, actions, overrides):
    """The losses, and the norm of the gradient of their sum."""
    continuous = actions == "continuous"
    policy = make_policy(continuous)
    log_prob = -1.2 if continuous else -0.7
    batch = TensorDict(
        {
            "observation": sines(B, T, 2, phase=0.1),
            "is_init": sines(B, T, 1, phase=0.2) > 0.8,
            "recurrent_state": sines(B, T, 1, H, phase=0.3),
            "action": sines(B, T, 1, phase=0.4) if continuous else (sines(B, T, phase=0.4) > 0).long(),
            "action_log_prob": log_prob + 0.3 * sines(B, T, phase=0.5),
            "advantage": sines(B, T, 1, phase=0.6),
            "loss_mask": sines(B, T, 1, phase=0.9) > -0.5,
            "episode_loss_steps": torch.arange(1, B * T + 1).reshape(B, T, 1) % 5 + 1,
            "ref_log_prob": log_prob + 0.3 * sines(B, T, phase=1.0),
        },
        [B, T],
    )
    algorithm = make_algorithm(compose("device=cpu", "algorithm=grpo", *overrides), policy)
    losses = algorithm.loss(batch, policy.sequence(*policy.inputs(batch)))
    losses.total.backward()
    gradients = [parameter.grad.norm() for parameter in policy.parameters() if parameter.grad is not None]
    found = {name: term.item() for name, term in losses.terms.items()}
    return found | {"gradient": torch.stack(gradients).norm().item()}


KL = "algorithm.kl_to_ref_coeff=0.5"
GOLDEN = {
    "discrete algorithm.entropy_coeff=0.25": (-0.4872422954, -0.1468621128, None, 0.3016801644),
    f"discrete algorithm.aggregation=episode {KL}": (-0.5619732425, 0.0, 0.03623082459, 0.4688213648),
    f"continuous {KL}": (0.02494992506, 0.0, 0.3858278091, 2.566278582),
}


@pytest.mark.parametrize(("case", "numbers"), GOLDEN.items(), ids=GOLDEN)
def test_losses_and_gradient_norm_are_what_they_were(case, numbers, compose):
    actions, *overrides = case.split()
    named = zip(("objective", "entropy", "kl_to_ref", "gradient"), numbers, strict=True)
    expected = {name: number for name, number in named if number is not None}
    assert losses_and_gradient(compose, actions, tuple(overrides)) == pytest.approx(expected, rel=1e-9)
