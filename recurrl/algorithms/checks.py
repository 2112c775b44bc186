"""Checks that losses are finite, that their terms are minimised, and that an algorithm's parameters are trained.

Shape legend: S slices, K steps of a slice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from recurrl.algorithms.metrics import GRAD_NORM, SKIPPED, STEPS, Losses
from recurrl.errors import ConfigError, NonFiniteError, RunError, require
from recurrl.keys import LOSS_MASK

if TYPE_CHECKING:
    from recurrl.algorithms.algorithm import Algorithm

MAX_SKIPPED_STEPS = 10
"""Gradient steps with NaN or Inf are skipped. If an epoch ends with this many in a row, so does the run."""


def check_losses(losses: Losses, algorithm: Algorithm, slices_SK: TensorDictBase) -> None:
    """Rejects losses that could not be minimised and logged.

    Raises:
        ConfigError: they are not :class:`Losses`; there is no term; a term or metric is not a scalar; a term does not
            depend on the parameters; the ratios are not one per step, or missing although a key needs them; or the loss
            includes steps that are not transitions.
    """
    what = f"The loss of algorithm={algorithm.options.name}"
    require(
        isinstance(losses, Losses),
        f"{what} must be recurrl.algorithms.Losses (got a {type(losses).__name__}). "
        "Return Losses({'objective': loss}).",
    )
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
    require(
        losses.mask is not None or LOSS_MASK not in slices_SK,
        f"{what} must leave out steps that the environment inserts (got no mask). Read mask = slices[{LOSS_MASK!r}], "
        "compute means with recurrl.algorithms.importance.mean_of(value, mask), and return Losses(..., mask=mask).",
    )
    shape_SK = slices_SK.batch_size
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
    """Rejects parameters of an algorithm that would not be trained. Called after the first gradient.

    Raises:
        ConfigError: with the names of such parameters.
    """
    own = ((name, each) for name, each in algorithm.named_parameters() if not name.startswith("policy."))
    without = [name for name, each in own if each.requires_grad and each.grad is None]
    unknown = [name for name, each in vars(algorithm).items() if name not in vars(nn.Module()) and _is_learnt(each)]
    for names, why in ((without, "get no gradient from the loss"), (unknown, "are not registered")):
        require(
            not names,
            f"{', '.join(names)} of algorithm={algorithm.options.name} {why}, so they would not be trained. "
            "Register them as nn.Parameter, nn.ModuleList, nn.ModuleDict or nn.Buffer, and use them in the loss.",
        )


def _is_learnt(value: Any) -> bool:
    """True for an attribute with trainable tensors or modules that torch does not register: a list or dict of them."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
    return any(
        isinstance(each, nn.Module) or (isinstance(each, Tensor) and each.is_leaf and each.requires_grad)
        for each in values
    )


def check_all_optimized(algorithm: Algorithm) -> None:
    """Rejects parameters that the optimizer does not have, because they were made or unfrozen after it.

    Raises:
        ConfigError: with the names of such parameters.
    """
    optimized = set(map(id, algorithm.optimizer.param_groups[0]["params"]))
    late = [name for name, each in algorithm.named_parameters() if each.requires_grad and id(each) not in optimized]
    if late:
        raise ConfigError(
            f"The parameters of algorithm={algorithm.options.name} must be those after its constructor (got "
            f"{', '.join(late)} later, which would not be trained). Make modules in __init__: their sizes are in "
            "policy.observation_spec, policy.action_spec and config.cell.hidden_size."
        )


def check_gradient(algorithm: Algorithm, metrics: Mapping[str, float]) -> None:
    """Rejects an iteration whose gradients were all zero, unless its loss was exactly zero too.

    Raises:
        RunError: all gradients of the iteration were zero.
    """
    if metrics.get(GRAD_NORM) == 0 and any(value != 0 for name, value in metrics.items() if name.startswith("loss/")):
        raise RunError(no_gradient(algorithm, "has a gradient of exactly zero in all steps of an iteration"))


def no_gradient(algorithm: Algorithm, what: str) -> str:
    """The error message for a loss from which nothing would be learned."""
    return (
        f"The loss of algorithm={algorithm.options.name} {what}, so nothing would be learned. Look for parameters that "
        "were detached or replaced, for example by requires_grad_(False) in a callback, or for torch.no_grad()."
    )


def check_skipped(algorithm: Algorithm, steps: Sequence[Mapping[str, Tensor]]) -> None:
    """Updates the number of consecutive skipped gradient steps.

    Raises:
        NonFiniteError: the last ``MAX_SKIPPED_STEPS`` steps or more were skipped.
    """
    in_a_row = int(algorithm.skipped_in_a_row)
    # A step with an empty minibatch was neither skipped nor taken.
    for skipped, taken in torch.stack([step[name] for step in steps for name in (SKIPPED, STEPS)]).view(-1, 2).tolist():
        in_a_row = 0 if taken else in_a_row + int(skipped)
    algorithm.skipped_in_a_row.fill_(in_a_row)
    if in_a_row >= MAX_SKIPPED_STEPS:
        raise NonFiniteError(
            f"Training produced NaN or Inf: the last {in_a_row} gradient steps had a non-finite loss or gradient "
            f"and were skipped (not finite: {_not_finite(algorithm, steps[-1])}). A smaller lr or "
            "algorithm.max_grad_norm may help; so may normalised or clipped observations and rewards."
        )


def _not_finite(algorithm: Algorithm, step: Mapping[str, Tensor]) -> str:
    """Names what was not finite in a step: entries of the rows, else terms of the loss, else the gradient."""
    assert algorithm.rows is not None
    rows = {str(key): entry for key, entry in algorithm.rows.items(True, True)}
    terms = {name: value for name, value in step.items() if name.startswith("loss/")}
    for entries in (rows, terms):
        if names := [name for name, value in entries.items() if not value.isfinite().all()]:
            return ", ".join(names[:5])
    return "the gradient"
