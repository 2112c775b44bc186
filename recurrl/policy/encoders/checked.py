"""Makes the configured encoder and tries it out, so that errors of a custom one are reported before training."""

import torch
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

from recurrl.config import EncoderConfig
from recurrl.config.plugins import factory
from recurrl.errors import require, user_code

_BATCH = 3


def make_encoder(options: EncoderConfig, observation: TensorSpec) -> tuple[nn.Module, int]:
    """The configured encoder, and the width of its output.

    Args:
        options: the encoder's options.
        observation: the spec of an unbatched observation, preprocessed.

    Raises:
        ConfigError: the encoder cannot be made for this observation, or does not return one vector per observation.
    """
    takes = (
        f"encoder.name={options.name} must map observations {_described(observation)} with a batch dimension to "
        "floating-point features [B, width]"
    )
    with user_code(f"{takes}: it fails", "See docs/extending.md."):
        encoder: nn.Module = factory("encoder", options.name)(options, observation)
        # Neither the random numbers nor the gradients of the run may depend on this.
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            samples = observation.zero([_BATCH])
            features = encoder(samples if isinstance(samples, Tensor) else samples.to_dict())
    returned = f"{features.dtype} {list(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
    require(
        isinstance(features, Tensor) and features.is_floating_point() and features.shape[:-1] == (_BATCH,),
        f"{takes} (got {returned} for {_BATCH} observations). See docs/extending.md.",
    )
    return encoder, features.shape[1]


def _described(observation: TensorSpec) -> str:
    if isinstance(observation, Composite):
        return "{" + ", ".join(f"{name}: {_described(spec)}" for name, spec in observation.items()) + "}"
    return f"{str(observation.dtype).removeprefix('torch.')}{list(observation.shape)}"
