"""Checks of an algorithm's loss in its first gradient step: what would not be minimised, learnt or logged is an error.

Shape legend: S slices, K steps of a slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Size, Tensor, nn

from recurrl.errors import ConfigError, require
from recurrl.keys import VALUE

if TYPE_CHECKING:
    from recurrl.algorithms.algorithm import Algorithm, Losses


def check_losses(losses: Losses, algorithm: Algorithm, shape_SK: Size) -> None:
    """Rejects losses that could not be minimised and logged.

    Raises:
        ConfigError: there is no term; a term or metric is not a scalar; a term does not depend on the parameters; or
            the ratios are not one per step, or missing where a key needs them.
    """
    what = f"The loss of algorithm={algorithm.options.name}"
    require(bool(losses.terms), f"{what} has no terms. Return at least one in Losses(terms, metrics).")
    terms = {f"loss/{name}": term for name, term in losses.terms.items()}
    for name, value in (*terms.items(), *losses.metrics.items()):
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        advice = "Return a scalar tensor, for example its mean()."
        require(shape == (), f"{what} returns {name} of shape {shape}. {advice}")
    detached = [name for name, term in losses.terms.items() if not term.requires_grad and term != 0]
    require(
        not detached or len(detached) == len(losses.terms),
        f"{what} returns the term {', '.join(detached)} without gradient, so it would not be minimised. Look for a "
        "detach(), or return it among the metrics.",
    )
    for name, of_steps in (("log_ratio", losses.log_ratio), ("mask", losses.mask)):
        # GRPO's have one more dimension, of size one.
        if of_steps is not None and of_steps.shape not in (shape_SK, (*shape_SK, 1)):
            raise ConfigError(
                f"{what} returns {name} of shape {tuple(of_steps.shape)} for slices of shape {tuple(shape_SK)}. "
                "Return one value per step."
            )
    follows = {
        "lr_schedule=adaptive": algorithm.config.lr_schedule == "adaptive",
        "algorithm.target_kl": algorithm.options.target_kl is not None,
    }
    needs = " and ".join(key for key, needed in follows.items() if needed)
    require(
        losses.log_ratio is not None or not needs,
        f"{needs} needs the KL, but the loss of algorithm={algorithm.options.name} has no log_ratio. "
        "Return it in Losses, or leave the key out.",
    )


def check_own_parameters(algorithm: Algorithm) -> None:
    """Rejects what an algorithm holds to be learnt, and would not be. Called after the first gradient.

    Raises:
        ConfigError: with the names of such parameters.
    """
    own = ((name, each) for name, each in algorithm.named_parameters() if not name.startswith("policy."))
    without = [name for name, each in own if each.requires_grad and each.grad is None]
    unknown = [name for name, value in vars(algorithm).items() if _is_learnt(value)]
    for names, why in ((without, "get no gradient from the loss"), (unknown, "are not registered")):
        require(
            not names,
            f"{', '.join(names)} of algorithm={algorithm.options.name} {why}, so they would not be learnt. Use "
            "nn.Parameter, nn.ModuleList or nn.Buffer, and in the loss what is to be learnt.",
        )


def _is_learnt(value: Any) -> bool:
    """True for tensors and modules to learn, of which torch does not know in an attribute of a module."""
    values = value if isinstance(value, list | tuple) else [value]
    return any(
        isinstance(each, nn.Module) or (isinstance(each, Tensor) and each.is_leaf and each.requires_grad)
        for each in values
    )


@contextmanager
def missing_critic_named(algorithm: Algorithm) -> Iterator[None]:
    """Explains the error of an algorithm that reads values, but whose options declare no critic.

    Raises:
        ConfigError: in place of that error.
    """
    try:
        yield
    except (AttributeError, KeyError, TypeError) as error:
        if algorithm.policy.critic_head is not None or not any(each in str(error) for each in (VALUE, "NoneType")):
            raise
        raise ConfigError(
            f"algorithm={algorithm.options.name} reads values, but its options have critic_kind=None, so there is no "
            f"critic ({type(error).__name__}: {error}). Have critic_kind return 'shared', 'recurrent' or 'feedforward'."
        ) from error
