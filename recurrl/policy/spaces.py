"""What an environment's spaces have, which decides which options of the policy have an effect."""

from torchrl.data import Categorical, Composite, TensorSpec

from recurrl.config.options import BOUNDED, CONTINUOUS, IMAGES, NO_IMAGES, NUMBERS, SINGLE_CONTINUOUS, Condition
from recurrl.keys import ACTION_MASK, PREVIOUS_ACTION, PREVIOUS_REWARD, path_of
from recurrl.specs import finite_bounds, is_image


def kinds(observation: TensorSpec, action: TensorSpec) -> set[Condition]:
    """The conditions of options that an environment's spaces meet.

    Args:
        observation: the spec of an unbatched observation.
        action: that of an action.
    """
    met = set()
    for path, spec in _leaves(observation):
        if path == (ACTION_MASK,):
            continue
        image = is_image(spec)
        if image or path not in ((PREVIOUS_ACTION,), (PREVIOUS_REWARD,)):
            met.add(IMAGES if image else NO_IMAGES)
        if not (image or isinstance(spec, Categorical) or path == (PREVIOUS_ACTION,)):
            met.add(NUMBERS)
    for path, spec in _leaves(action):
        if not isinstance(spec, Categorical):
            met |= {CONTINUOUS} if path else {CONTINUOUS, SINGLE_CONTINUOUS}
            met |= {BOUNDED} if finite_bounds(spec).any() else set()
    return met


def _leaves(spec: TensorSpec) -> list[tuple[tuple[str, ...], TensorSpec]]:
    """The specs of tensors within a spec, with their paths."""
    if not isinstance(spec, Composite):
        return [((), spec)]
    return [(path_of(key), leaf) for key, leaf in spec.items(include_nested=True, leaves_only=True)]
