"""Makes the configured encoder and tries it out, so that one of a user's own fails before training and by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

from recurrl.config import EncoderConfig
from recurrl.config.plugins import factory
from recurrl.errors import ConfigError, require

_CONTRACT = (
    "An encoder maps observations [B, ...] to floating-point features [B, width], independently of the rest of the "
    "batch; see docs/extending.md."
)


def make_encoder(options: EncoderConfig, observation: TensorSpec) -> tuple[nn.Module, int]:
    """The configured encoder, and the width of its output.

    Args:
        options: as configured.
        observation: the spec of an unbatched observation, preprocessed.

    Raises:
        ConfigError: the encoder cannot be made for this observation, or does not do what an encoder must.
    """
    asked = f"encoder.name={options.name}"
    with _named(f"{asked} could not be made for", observation):
        encoder = factory("encoder", options.name)(options, observation)
    require(
        isinstance(encoder, nn.Module), f"{asked} made a {type(encoder).__name__}, not a torch.nn.Module. {_CONTRACT}"
    )
    # Neither the random numbers nor the gradients of the run may depend on this.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        samples = _samples(observation, 3)
        with _named(f"{asked} cannot encode", observation):
            together, alone = encoder(samples), [encoder(_row(samples, row)) for row in range(3)]
    for features, batch in ((together, 3), *((each, 1) for each in alone)):
        _check_features(asked, features, batch)
    require(
        torch.allclose(together, torch.cat(alone), rtol=1e-3, atol=1e-3, equal_nan=True),
        f"{asked} returned different features for the same observation in another batch. It depends on the rest of the "
        "batch, as batch normalisation does, or on random numbers, as dropout does. Replace such layers, or call their "
        f"eval(). {_CONTRACT}",
    )
    return encoder, together.shape[1]


@contextmanager
def _named(failure: str, observation: TensorSpec) -> Iterator[None]:
    """Names the encoder and the observation in whatever an encoder raises."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{failure} the observation {_described(observation)}: {type(error).__name__}: {error}. {_CONTRACT} "
            "HYDRA_FULL_ERROR=1 prints the traceback."
        ) from error


def _described(observation: TensorSpec) -> str:
    if isinstance(observation, Composite):
        return "{" + ", ".join(f"{name}: {_described(spec)}" for name, spec in observation.items()) + "}"
    return f"{str(observation.dtype).removeprefix('torch.')}{list(observation.shape)}"


def _check_features(asked: str, features: Any, batch: int) -> None:
    if not isinstance(features, Tensor):
        raise ConfigError(f"{asked} returned a {type(features).__name__}, not a tensor. {_CONTRACT}")
    fits = features.ndim == 2 and features.shape[0] == batch and features.shape[1] > 0
    require(
        fits and features.is_floating_point(),
        f"{asked} returned the shape {list(features.shape)} and the dtype {features.dtype} for {batch} "
        f"observation{'s' * (batch > 1)}. {_CONTRACT}",
    )


def _samples(spec: TensorSpec, batch: int) -> Any:
    """Random observations."""
    if isinstance(spec, Composite):
        return {name: _samples(entry, batch) for name, entry in spec.items()}
    if spec.dtype.is_floating_point:
        # Not spec.rand, which overflows between bounds such as ±3.4e38.
        return spec.expand(batch, *spec.shape).project(torch.randn(batch, *spec.shape, dtype=spec.dtype))
    return spec.rand(torch.Size([batch]))


def _row(samples: Any, row: int) -> Any:
    """One observation, as a batch."""
    if isinstance(samples, Tensor):
        return samples[row : row + 1]
    return {name: _row(entry, row) for name, entry in samples.items()}
