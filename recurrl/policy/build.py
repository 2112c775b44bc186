"""Builds the policy from the configuration."""

from collections.abc import Collection, Iterator

import torch
from torch import Tensor, nn
from torchrl.data import Categorical, Composite, TensorSpec

from recurrl.config import AlgorithmConfig, CellConfig, EncoderConfig, TrainConfig
from recurrl.config.cell import NO_CELL, BackendConfig
from recurrl.config.options import BOUNDED, CONTINUOUS, IMAGES, NO_IMAGES, NUMBERS, Condition
from recurrl.config.plugins import factory, is_custom
from recurrl.errors import require, user_code
from recurrl.keys import ACTION_MASK, OBSERVATION, PREVIOUS_REWARD, PRIVILEGED
from recurrl.policy.distributions import make_actor
from recurrl.policy.encoders.images import image_network
from recurrl.policy.initialization import HEAD_GAIN, TANH_GAIN, linear
from recurrl.policy.policy import Policy, Trunk
from recurrl.policy.preprocessing import PREVIOUS_ACTION_GAIN, PreviousAction, make_preprocessing
from recurrl.recurrent import RecurrentModule
from recurrl.recurrent.backends import Backend
from recurrl.recurrent.cell import Cell, orthogonal
from recurrl.recurrent.gated import GatedCell
from recurrl.specs import bounds_of, is_continuous, is_image, leaves_of

_TRIED = 3
"""Number of observations with which an encoder is tried out."""


def make_policy(config: TrainConfig, observation_spec: Composite, action_spec: TensorSpec) -> Policy:
    """The configured network for an environment's unbatched specs, on the configured device.

    Args:
        config: the configuration.
        observation_spec: the spec of the environment's observation, with the entry ``observation``.
        action_spec: the spec of the entry ``action``; a composite for actions of several parts.

    Raises:
        ConfigError: the observation or the action is of a kind that the configured network cannot handle.
    """
    # Made on a CPU and moved at the end, wherever the environment's specs are.
    observation, action_spec = observation_spec[OBSERVATION].to("cpu"), action_spec.to("cpu")
    cell, critic = cell_from_options(config.cell), config.algorithm.critic_kind
    # The actor gets no spec of the critic's entries, so it cannot read them.
    seen = _without(observation, config.algorithm.critic_only)
    discrete = not is_continuous(action_spec)
    sees_action = config.policy.previous_action
    if sees_action is None:
        sees_action = discrete and cell is not None
    previous = PreviousAction(action_spec) if sees_action else None
    trunk, width = _make_trunk(config, seen, cell, previous, discrete), config.cell.hidden_size
    actor_head = make_actor(config.policy, width, seen, action_spec)
    critic_head, critic_trunk = None, None
    if critic is not None:
        critic_head = linear(width, 1, HEAD_GAIN)
    if critic not in (None, "shared"):
        own = cell if critic == "recurrent" else None
        critic_trunk = _make_trunk(config, observation, own, previous, discrete, prefix="critic_")
    correlation, critic_only = config.policy.noise_correlation, config.algorithm.critic_only
    policy = Policy(trunk, actor_head, critic_head, critic_trunk, correlation, critic_only, previous)
    policy.observation_spec, policy.action_spec = observation, action_spec
    return policy.to(torch.device(config.device))


_ADVICE_ON_PRIVILEGED = (
    " For privileged, also set env.mask=[...], what the policy may not see; or name a simulator's groups, "
    "env.critic_groups=[...]; or define the method privileged of a memory task."
)


def _without(observation: TensorSpec, names: Collection[str]) -> TensorSpec:
    """The spec of an observation without the entries that only the critic sees.

    Raises:
        ConfigError: an entry does not exist, is the action mask, or none would be left.
    """
    if not names:
        return observation
    entries = dict(observation.items()) if isinstance(observation, Composite) else {}
    allowed = {name for name in entries if name != ACTION_MASK}
    advice = _ADVICE_ON_PRIVILEGED if PRIVILEGED in names else ""
    require(
        set(names) < allowed,
        "algorithm.critic_observation must name some, but not all, of the observation's entries "
        f"({', '.join(sorted(allowed)) or 'none: it is not a dict'}; got {', '.join(names)}).{advice}",
    )
    return Composite({name: spec for name, spec in entries.items() if name not in names})


def cell_from_options(options: CellConfig) -> Cell | None:
    """The configured cell; None for a feed-forward network.

    Raises:
        ConfigError: there is no such cell.
    """
    if options.name == NO_CELL:
        return None
    make = factory("cell", options.name)
    missing = ", ".join(sorted(getattr(make, "__abstractmethods__", ())))
    require(not missing, f"cell.name={options.name} must define {missing} (got none). Add what is missing.")
    with user_code(f"cell.name={options.name} cannot be made: it fails", "Look at its constructor."):
        cell = make(options)
    size = getattr(cell, "hidden_size", None) if isinstance(cell, Cell) else None
    require(
        size == options.hidden_size,
        f"cell.name={options.name} must make a recurrl.recurrent.Cell with hidden_size={options.hidden_size} "
        f"(got a {type(cell).__name__} with {size}). Set self.hidden_size = options.hidden_size; a "
        "GatedCell's constructor does: call super().__init__(options.hidden_size).",
    )
    return cell


def make_backend(options: BackendConfig) -> str | Backend:
    """The configured backend: the name of a built-in one, or a custom object.

    Raises:
        ConfigError: there is no such backend, or it lacks an attribute of :class:`Backend`.
    """
    if not is_custom(options.name):
        return options.name
    backend: Backend = factory("backend", options.name)(options)
    missing = [name for name in ("controls_matmul_precision", "supports", "sequence") if not hasattr(backend, name)]
    require(
        not missing,
        f"backend.name={options.name} must make a recurrl.recurrent.backends.Backend (got a {type(backend).__name__} "
        f"without {' and '.join(missing)}). Add what is missing.",
    )
    return backend


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
        # A trial, on which neither the random numbers nor the gradients of the run may depend.
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            samples = observation.zero([_TRIED])
            features = encoder(samples if isinstance(samples, Tensor) else samples.to_dict())
    returned = f"{features.dtype} {list(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
    require(
        isinstance(features, Tensor) and features.is_floating_point() and features.shape[:-1] == (_TRIED,),
        f"{takes} (got {returned} for {_TRIED} observations). See docs/extending.md.",
    )
    return encoder, features.shape[1]


def _described(observation: TensorSpec) -> str:
    if isinstance(observation, Composite):
        return "{" + ", ".join(f"{name}: {_described(spec)}" for name, spec in observation.items()) + "}"
    return f"{str(observation.dtype).removeprefix('torch.')}{list(observation.shape)}"


def _make_trunk(
    config: TrainConfig,
    observation: TensorSpec,
    cell: Cell | None,
    previous: PreviousAction | None,
    discrete: bool,
    prefix: str = "",
) -> Trunk:
    """The configured trunk, with ``cell.hidden_size`` features.

    Args:
        config: the configuration.
        observation: the spec of an unbatched observation.
        cell: the recurrent cell; None puts a feed-forward network in its place.
        previous: the previous action, if the trunk sees it.
        discrete: true if all actions are discrete.
        prefix: precedes the names of its states, to distinguish them from those of another trunk.

    Raises:
        ConfigError: the observation is of a kind that the configured encoders cannot handle.
    """
    preprocess, preprocessed = make_preprocessing(observation, config.env.normalize_observation)
    encoder, width = make_encoder(config.encoder, preprocessed)
    width += 0 if previous is None else previous.size
    core = _feedforward(config.cell, width) if cell is None else _recurrent(config, width, cell, prefix)
    if previous is not None:
        for columns in _columns(core, cell, width, previous.size):
            columns.mul_(PREVIOUS_ACTION_GAIN)
    # Not for continuous actions, because HalfCheetah's return then falls by half (docs/measurements/recipe.md).
    return Trunk(encoder, core, preprocess, sees_action=previous is not None, normalizes=discrete)


def _feedforward(options: CellConfig, width: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(options.num_layers):
        layers += [linear(width, options.hidden_size, TANH_GAIN), nn.Tanh()]
        width = options.hidden_size
    return nn.Sequential(*layers)


def _recurrent(config: TrainConfig, width: int, cell: Cell, prefix: str) -> RecurrentModule:
    states = [f"{prefix}recurrent_state{suffix}" for suffix in cell.state_shapes()]
    module = RecurrentModule(
        cell,
        width,
        num_layers=config.cell.num_layers,
        recurrent_backend=make_backend(config.backend),
        recurrent_recompute=config.recompute,
        recurrent_matmul_precision=config.precision,
        in_keys=["encoded", *states],
        out_keys=["features", *(("next", state) for state in states)],
        device=config.device,
    )
    # A cell that defines its own initial values keeps them.
    if isinstance(cell, GatedCell) and type(cell).initialize is Cell.initialize:
        for _, parameter in module.layers.named_parameters():
            orthogonal(parameter.data, cell.hidden_size)
    return module


def _columns(core: nn.Module, cell: Cell | None, width: int, count: int) -> Iterator[Tensor]:
    """The weights of the last ``count`` of a core's ``width`` inputs."""
    if cell is None:
        yield next(core.parameters()).data[:, -count:]
        return
    without = cell.parameter_shapes(width - count)
    for name, shape in cell.parameter_shapes(width).items():
        for axis, (size, fewer) in enumerate(zip(shape, without[name], strict=True)):
            if (size, fewer) == (width, width - count):
                yield getattr(core.layers, f"{name}_l0").data.narrow(axis, size - count, count)


def conditions_met(options: AlgorithmConfig, observation: TensorSpec, action: TensorSpec) -> set[Condition]:
    """The conditions of options that the actions, and the observations that the networks read, meet.

    Args:
        options: the algorithm's options.
        observation: the spec of an unbatched observation.
        action: the spec of an action.

    Raises:
        ConfigError: the options name entries that the observation does not have.
    """
    if options.critic_kind in (None, "shared"):  # then no network reads these entries
        observation = _without(observation, options.critic_only)
    entries = [(path, spec) for path, spec in leaves_of(observation) if path != (ACTION_MASK,)]
    images = [spec for _, spec in entries if is_image(spec)]
    others = [(path, spec) for path, spec in entries if not is_image(spec)]
    continuous = [spec for _, spec in leaves_of(action) if is_continuous(spec)]
    met = {
        IMAGES: images,
        # The bits of a small image enter dense layers.
        NO_IMAGES: [path for path, _ in others if path != (PREVIOUS_REWARD,)]
        or [spec for spec in images if image_network("auto", spec) == "bits"],
        NUMBERS: [spec for _, spec in others if not isinstance(spec, Categorical)],
        CONTINUOUS: continuous,
        BOUNDED: [spec for spec in continuous if torch.stack(bounds_of(spec)).isfinite().any()],
    }
    return {condition for condition, specs in met.items() if specs}
