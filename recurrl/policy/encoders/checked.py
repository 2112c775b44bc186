"""Makes the configured encoder and tries it out, so that a custom one fails before training and by name."""

from typing import Any

import torch
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

from recurrl.config import EncoderConfig
from recurrl.config.plugins import factory
from recurrl.errors import ConfigError

_BATCH = 3


def make_encoder(options: EncoderConfig, observation: TensorSpec) -> tuple[nn.Module, int]:
    """The configured encoder, and the width of its output.

    Args:
        options: the encoder's.
        observation: the spec of an unbatched observation, preprocessed.

    Raises:
        ConfigError: the encoder cannot be made for this observation, or does not return one vector for each.
    """
    try:
        encoder: nn.Module = factory("encoder", options.name)(options, observation)
        # Neither the random numbers nor the gradients of the run may depend on this.
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            features = encoder(_samples(observation))
        if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != _BATCH:
            returned = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ValueError(f"it returned {returned} for {_BATCH} observations")
        if not features.is_floating_point():
            raise ValueError(f"it returned {features.dtype}")
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"encoder.name={options.name} must map observations {_described(observation)} with a batch dimension to "
            f"floating-point features [B, width] (got {type(error).__name__}: {error}). See docs/extending.md; "
            "HYDRA_FULL_ERROR=1 prints the traceback."
        ) from error
    return encoder, features.shape[1]


def _described(observation: TensorSpec) -> str:
    if isinstance(observation, Composite):
        return "{" + ", ".join(f"{name}: {_described(spec)}" for name, spec in observation.items()) + "}"
    return f"{str(observation.dtype).removeprefix('torch.')}{list(observation.shape)}"


def _samples(spec: TensorSpec) -> Any:
    """Random observations."""
    if isinstance(spec, Composite):
        return {name: _samples(entry) for name, entry in spec.items()}
    if spec.dtype.is_floating_point:
        # Not spec.rand, which overflows between bounds such as ±3.4e38.
        return spec.expand(_BATCH, *spec.shape).project(torch.randn(_BATCH, *spec.shape, dtype=spec.dtype))
    return spec.rand(torch.Size([_BATCH]))
