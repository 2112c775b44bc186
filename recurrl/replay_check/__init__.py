"""The start-up check: does the update see what the rollout saw?

``recorded`` looks at what collection recorded: episode starts, the chain from step to step, observations after resets.
``network`` replays it as learning will.

Shape legend: N environments, T steps of a row.
"""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from recurrl.config import TrainConfig
from recurrl.policy import OBSERVATION, Policy
from recurrl.recurrent import precision
from recurrl.replay_check import network, recorded

TOLERANCE = {"ieee": 1e-4, "tf32x3": 1e-3, "tf32": 3e-2, "bf16": 2e-1}
"""By precision, the difference that rounding may make, relative to 1 + |recorded|.

A step and a sequence add the same products in another order. In float32, whose unit is 6e-8, that makes differences of
1e-7 to 1e-5; a wrong state makes 1e-2 and more. The units of tf32 and bf16 are 5e-4 and 4e-3.
"""


def check_replay(config: TrainConfig, policy: Policy, batch_NT: TensorDictBase, goes_on: bool = False) -> str:
    """Replays the first batch of a run, and returns one line on how near it comes to what collection recorded.

    Log-probabilities and values are replayed in sequence mode, in minibatches of slices from the states stored at their
    beginnings, by the computation the update uses. The states they end with, and those that single steps lead to from
    every stored state, must be the recorded ones; each of these must be the state stored at the next step. So the
    states are right at all steps, and an error cannot hide by growing slowly. Neither the policy, the batch nor the
    random numbers to come are changed.

    Args:
        config: the run's configuration.
        policy: the policy that collected the batch, with the weights it had.
        batch_NT: the collector's first batch.
        goes_on: whether rows may go on with episodes of a run before; else each has to begin with an episode.

    Raises:
        ReplayError: naming the first entry, environment and step that differ, the figures, and a likely cause.
    """
    device = torch.device(config.device)
    recorded.check_present(batch_NT, policy.state_keys)
    keys = list(batch_NT.select(OBSERVATION, *policy.state_keys).keys(True, True))
    recorded.check_finite(batch_NT, keys)
    recorded.check_marks(batch_NT, goes_on)
    recorded.check_chain(batch_NT, keys, policy.state_keys)
    # On the CPU there is no device whose generator would have to be saved too.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        observed = [key for key in keys if key not in policy.state_keys]
        resets = recorded.check_resets(config, batch_NT, observed)
        tolerance = TOLERANCE[precision.resolve(config.precision.name, device)]
        differences = network.check_network(config, policy, batch_NT, tolerance)
    figures = ", ".join(f"{name} {value:.1e}" for name, value in differences.items())
    return (
        f"replay check: {batch_NT.numel()} frames with {resets} resets replay as collected; largest differences: "
        f"{figures} (tolerance {tolerance:.0e})"
    )
