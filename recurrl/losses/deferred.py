"""Metrics of a loss that are computed when they are read, for many minibatches at once.

Shape legend: M minibatches.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Deferred(NamedTuple):
    """A metric that is not computed yet.

    Attributes:
        function: from tensors ``[M, ...]`` to the metrics ``[M]`` of M minibatches.
        tensors: those of one minibatch, without gradient.
    """

    function: Callable[..., Tensor]
    tensors: tuple[Tensor, ...]


class Metrics(Mapping[str, Tensor]):
    """Scalars by name.

    Args:
        entries: the scalars; those that are deferred are computed whenever they are read from here.
    """

    def __init__(self, entries: Mapping[str, Tensor | Deferred]) -> None:
        self.entries = entries

    def __getitem__(self, name: str) -> Tensor:
        """The metric of one minibatch."""
        return of_minibatches([self.entries[name]])[0]

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self.entries)

    def __len__(self) -> int:
        """The number of metrics."""
        return len(self.entries)


@torch.no_grad()
def of_minibatches(values: Sequence[Any]) -> Tensor:
    """One metric ``[M]`` of M minibatches, given as scalars or deferred."""
    kinds = {
        (value.function, *[tensor.shape for tensor in value.tensors]) for value in values if type(value) is Deferred
    }
    if not kinds:
        return torch.stack(list(values))
    if len(kinds) == 1 and all(type(value) is Deferred for value in values):
        return values[0].function(*map(torch.stack, zip(*(value.tensors for value in values), strict=True)))
    return torch.cat([of_minibatches([value]) for value in values])
