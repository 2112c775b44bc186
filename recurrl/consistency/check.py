"""The consistency check as a whole.

Shape legend: N environments, T steps of a row.
"""

import torch
from tensordict import TensorDictBase

from recurrl.config import EnvConfig
from recurrl.consistency import network, recorded
from recurrl.keys import OBSERVATION
from recurrl.policy import Policy
from recurrl.recurrent import precision

TOLERANCE = {"ieee": 1e-4, "tf32x3": 1e-3, "tf32": 3e-2, "bf16": 2e-1}
"""By precision, the difference that rounding may cause, relative to 1 + |recorded|.

Single steps and sequences add the same products in different orders. In float32, whose unit is 6e-8, differences are
1e-7 to 1e-5; a wrong state causes 1e-2 and more. The units of tf32 and bf16 are 5e-4 and 4e-3.
"""


def check_consistency(
    policy: Policy,
    batch_NT: TensorDictBase,
    *,
    env: EnvConfig,
    seed: int,
    slice_len: int,
    minibatch_slices: int,
    precision_name: str,
    resumed: bool = False,
) -> str:
    """Replays the first batch of a run, and returns a line with the largest differences from the recorded entries.

    Log-probabilities and values are replayed as in the update: in sequence mode, in minibatches of slices, from the
    states stored at their beginnings. The final states of these sequences, and those after single steps from every
    stored state, must equal the recorded next states; each of these must be the state stored at the next step. The
    states are then right at all steps, and no error can hide by growing slowly. Policy, batch and random number
    generators stay as they are.

    Args:
        policy: the policy that collected the batch, with unchanged weights.
        batch_NT: the first rollout.
        env: the environment, for resets if the batch has too few.
        seed: of these environments.
        slice_len: steps per slice.
        minibatch_slices: slices per minibatch.
        precision_name: of the recurrent layer's matrix products.
        resumed: rows may continue episodes of an earlier run; otherwise each must begin with an episode.

    Raises:
        ConsistencyError: with the first entry, environment and step that differ, both values, and a likely cause.
    """
    recorded.check_present(batch_NT, policy.state_keys)
    keys = list(batch_NT.select(OBSERVATION, *policy.state_keys).keys(True, True))
    recorded.check_finite(batch_NT, keys)
    recorded.check_marks(batch_NT, resumed)
    recorded.check_chain(batch_NT, keys, policy.state_keys)
    # The CPU's generator is always saved; a GPU's must be named.
    with torch.random.fork_rng([policy.device] if policy.device.type == "cuda" else []):
        observed = [key for key in keys if key not in policy.state_keys]
        resets = recorded.check_resets(env, seed, batch_NT, observed)
        tolerance = TOLERANCE[precision.resolve(precision_name, policy.device)]
        differences = network.check_network(policy, batch_NT, slice_len, minibatch_slices, tolerance)
    figures = ", ".join(f"{name} {value:.1e}" for name, value in differences.items())
    return (
        f"consistency check: {batch_NT.numel()} frames with {resets} resets replay as collected; largest differences: "
        f"{figures} (tolerance {tolerance:.0e})"
    )
