"""Checks that losses are finite, that their terms are minimised, and that an algorithm's parameters are trained.

Shape legend: S slices, K steps of a slice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from recurrl.algorithms.metrics import SKIPPED, STEPS, Losses
from recurrl.errors import NonFiniteError, RunError, require
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
        isinstance(losses, Losses) and bool(losses.terms),
        f"{what} must be recurrl.algorithms.Losses with at least one term (got a {type(losses).__name__}). "
        "Return Losses({'objective': loss}).",
    )
    scalars = {**{f"loss/{name}": term for name, term in losses.terms.items()}, **losses.metrics}
    per_step = {"log_ratio": losses.log_ratio, "mask": losses.mask}
    shape_SK = tuple(slices_SK.batch_size)
    for name, value in {**scalars, **{name: each for name, each in per_step.items() if each is not None}}.items():
        shapes: list[Any] = [()] if name in scalars else [shape_SK, (*shape_SK, 1)]
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        advice = "Return scalar tensors as terms and metrics, and one value per step as log_ratio and mask."
        require(shape in shapes, f"{what} must return {name} of shape {shapes[0]} (got {shape}). {advice}")
    detached = [name for name, term in losses.terms.items() if not term.requires_grad and term != 0]
    require(
        not detached or len(detached) == len(losses.terms),
        f"{what} must return terms with a gradient (got {', '.join(detached)} without), or they would not be "
        "minimised. Look for a detach(), or return them among the metrics.",
    )
    require(
        losses.mask is not None or LOSS_MASK not in slices_SK,
        f"{what} must leave out steps that the environment inserts (got no mask). Read mask = slices[{LOSS_MASK!r}], "
        "compute means with recurrl.algorithms.importance.mean_of(value, mask), and return Losses(..., mask=mask).",
    )
    needs_kl = algorithm.config.lr_schedule == "adaptive" or algorithm.options.target_kl is not None
    require(
        losses.log_ratio is not None or not needs_kl,
        f"{what} must have a log_ratio for lr_schedule=adaptive and algorithm.target_kl (got none). Return it in "
        "Losses, or leave these keys out.",
    )


def check_prepared(algorithm: Algorithm, prepared: Any, rows_NT: TensorDictBase, before: set[Any]) -> None:
    """Rejects anything but metrics from ``prepare``, and entries ``[N, T]``, which a loss would broadcast silently.

    Args:
        algorithm: the algorithm.
        prepared: what its ``prepare`` returned.
        rows_NT: the rows, after ``prepare``.
        before: the names of the rows' entries before it.

    Raises:
        ConfigError: it returned no metrics, or added floating-point entries ``[N, T]`` or ``index``.
    """
    what, shape = f"prepare of algorithm={algorithm.options.name} must", rows_NT.shape
    require(isinstance(prepared, Mapping), f"{what} return its metrics (got {prepared!r:.60}). Return {{}} for none.")
    added = [(key, entry) for key, entry in rows_NT.items(leaves_only=True) if key not in before]
    flat = ", ".join(key for key, entry in added if entry.shape == shape and entry.is_floating_point())
    require("index" not in rows_NT, f"{what} not write index (got one), which minibatches have. Choose another name.")
    require(not flat, f"{what} write {flat} as {(*shape, 1)} (got {tuple(shape)}). Write entry.unsqueeze(-1).")


def check_parameters(algorithm: Algorithm) -> None:
    """Rejects parameters that would not be trained. Called after the first gradient, and after each iteration.

    Raises:
        ConfigError: with the names of such parameters.
    """
    trained = set(map(id, algorithm.optimizer.param_groups[0]["params"]))
    learnt = {name: each for name, each in algorithm.named_parameters() if each.requires_grad}
    late = [name for name, each in learnt.items() if id(each) not in trained]
    unused = [name for name, each in learnt.items() if each.grad is None and not name.startswith("policy.")]
    own = vars(algorithm).keys() - vars(nn.Module())
    unknown = sorted(name for name in own if _is_learnt(getattr(algorithm, name)))
    reasons = {
        "are made or unfrozen after its constructor": late,
        "get no gradient from the loss": unused,
        "are not registered": unknown,
    }
    for why, names in reasons.items():
        require(
            not names,
            f"{', '.join(names)} of algorithm={algorithm.options.name} {why}, so they would not be trained. Use them "
            "in the loss, and register them in __init__ as nn.Parameter, nn.ModuleList, nn.ModuleDict or nn.Buffer. "
            "Sizes are in policy.observation_spec, policy.action_spec and config.cell.hidden_size.",
        )


def _is_learnt(value: Any) -> bool:
    """True for an attribute with trainable tensors or modules that torch does not register: a list or dict of them."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
    return any(
        isinstance(each, nn.Module) or (isinstance(each, Tensor) and each.is_leaf and each.requires_grad)
        for each in values
    )


def check_learns(algorithm: Algorithm, learns: bool, what: str) -> None:
    """Rejects a loss from which nothing would be learned; ``what`` says why.

    Raises:
        RunError: ``learns`` is false.
    """
    if not learns:
        raise RunError(
            f"The loss of algorithm={algorithm.options.name} {what}, so nothing would be learned. Look for parameters "
            "that were detached or replaced, for example by requires_grad_(False) in a callback, or for "
            "torch.no_grad()."
        )


def check_skipped(algorithm: Algorithm, steps: Sequence[Mapping[str, Tensor]]) -> None:
    """Updates the number of consecutive skipped gradient steps.

    Raises:
        NonFiniteError: the last ``MAX_SKIPPED_STEPS`` steps or more were skipped.
    """
    in_a_row = int(algorithm.skipped_in_a_row)
    # A step with an empty minibatch was neither skipped nor applied.
    flags = torch.stack([step[name] for step in steps for name in (SKIPPED, STEPS)]).view(-1, 2)
    for skipped, applied in flags.tolist():
        in_a_row = 0 if applied else in_a_row + int(skipped)
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
