"""Losses and gradients of each algorithm on one fixed batch, in float64.

The numbers were written down once, when the losses equalled the formulas (``test_grpo.py``) and TorchRL's
(``test_ppo.py``). A change of the maths shows here as a change of a number. Weights and data are sines: no generator
of random numbers matters.
"""

from collections.abc import Callable

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from recurrl.build import make_algorithm
from recurrl.config import TrainConfig
from recurrl.policy import Policy, Trunk
from recurrl.policy.heads import ActionHead
from recurrl.recurrent import RecurrentModule

B, T, H = 4, 6, 4


def sines(*shape: int, phase: float) -> Tensor:
    count = torch.Size(shape).numel()
    return torch.sin(phase + 0.7 * torch.arange(count, dtype=torch.float64)).reshape(shape)


def make_policy(continuous: bool) -> Policy:
    """A cell and two heads, put together here so that the numbers stay when networks get other layers."""
    cell = RecurrentModule("gru", 2, H, recurrent_backend="reference", in_key="encoded", out_key="features")
    head = nn.Sequential(nn.Linear(H, 2), LocAndScale()) if continuous else nn.Linear(H, 2)
    actor = ActionHead(head, normal if continuous else categorical)
    policy = Policy(Trunk(nn.Identity(), cell), actor, nn.Linear(H, 1)).double()
    for i, parameter in enumerate(policy.parameters()):
        parameter.data = 0.5 * sines(*parameter.shape, phase=float(i))
    return policy


class LocAndScale(nn.Module):
    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return features[..., :1], features[..., 1:].exp()


def normal(loc: Tensor, scale: Tensor) -> Distribution:
    return Independent(Normal(loc, scale), 1)


def categorical(logits: Tensor) -> Distribution:
    return Categorical(logits=logits)


def found(compose: Callable[..., TrainConfig], actions: str, overrides: tuple[str, ...]) -> dict[str, float]:
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
            "value_target": sines(B, T, 1, phase=0.7),
            "state_value": sines(B, T, 1, phase=0.8),
            "loss_mask": sines(B, T, 1, phase=0.9) > -0.5,
            "episode_loss_steps": torch.arange(1, B * T + 1).reshape(B, T, 1) % 5 + 1,
            "ref_log_prob": log_prob + 0.3 * sines(B, T, phase=1.0),
        },
        [B, T],
    )
    losses = make_algorithm(compose("device=cpu", *overrides), policy).loss(
        batch, policy.sequence(*policy.inputs(batch))
    )
    losses.total.backward()
    gradients = [parameter.grad.norm() for parameter in policy.parameters() if parameter.grad is not None]
    terms = {f"loss_{name}": term.item() for name, term in losses.terms.items()}
    return {**terms, "gradient": torch.stack(gradients).norm().item()}


GOLDEN: dict[tuple[str, ...], dict[str, float]] = {
    ("discrete", "algorithm.entropy_coeff=0.25"): {
        "loss_objective": -0.0995283196232,
        "loss_entropy": -0.150525151097,
        "loss_critic": 0.271290620912,
        "gradient": 0.437003991776,
    },
    (
        "discrete",
        "algorithm.clip_value=0.25",
        "algorithm.normalize_advantage=minibatch",
        "algorithm.entropy_coeff=0",
    ): {
        "loss_objective": -0.0357449677414,
        "loss_entropy": 0.0,
        "loss_critic": 0.271290620912,
        "gradient": 0.567872003572,
    },
    ("continuous", "algorithm.entropy_coeff=0.25"): {
        "loss_objective": 0.360420246554,
        "loss_entropy": -0.344834486375,
        "loss_critic": 0.271290620912,
        "gradient": 0.931623992809,
    },
    ("discrete", "algorithm=grpo", "algorithm.entropy_coeff=0.25"): {
        "loss_objective": -0.487242295359,
        "loss_entropy": -0.146862112782,
        "gradient": 0.301680164441,
    },
    ("discrete", "algorithm=grpo", "algorithm.aggregation=episode", "algorithm.kl_to_ref_coeff=0.5"): {
        "loss_objective": -0.561973242493,
        "loss_entropy": 0.0,
        "loss_kl_to_ref": 0.0362308245939,
        "gradient": 0.468821364817,
    },
    ("continuous", "algorithm=grpo", "algorithm.kl_to_ref_coeff=0.5"): {
        "loss_objective": 0.0249499250616,
        "loss_entropy": 0.0,
        "loss_kl_to_ref": 0.385827809131,
        "gradient": 2.56627858161,
    },
}


@pytest.mark.parametrize("case", GOLDEN, ids=" ".join)
def test_losses_and_gradient_norm_are_what_they_were(
    case: tuple[str, ...], compose: Callable[..., TrainConfig]
) -> None:
    actions, *overrides = case
    assert found(compose, actions, tuple(overrides)) == pytest.approx(GOLDEN[case], rel=1e-9)
