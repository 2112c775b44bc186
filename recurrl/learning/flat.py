"""The parameters of a policy in one vector, so that clipping and the optimizer take one operation for all of them."""

import torch
from torch import nn


def flattened(module: nn.Module) -> list[nn.Parameter]:
    """Moves a module's trainable parameters, and their gradients, into vectors; one for each dtype.

    The parameters keep their names and shapes, and become views. Their gradients are views as well: zero them with the
    vectors' own, ``vector.grad.zero_()``, and never set them to None. Move the module to its device before.
    """
    by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in module.parameters():
        if parameter.requires_grad:
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
    return [_vector(parameters) for parameters in by_dtype.values()]


def _vector(parameters: list[nn.Parameter]) -> nn.Parameter:
    vector = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in parameters]))
    vector.grad = torch.zeros_like(vector)
    sizes = [parameter.numel() for parameter in parameters]
    views = zip(parameters, vector.detach().split(sizes), vector.grad.split(sizes), strict=True)
    for parameter, values, gradient in views:
        parameter.data, parameter.grad = values.view_as(parameter), gradient.view_as(parameter)
    return vector
