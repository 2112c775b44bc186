"""Shared by parity tests: reset patterns, batches, and all values that two implementations must agree on."""

import torch
from tensordict import TensorDict

from recurrl.recurrent import set_recurrent_mode

EPSILON = torch.finfo(torch.float32).eps
PATTERNS = ("none", "first", "every step", "last", "random", "one row only")


def resets(pattern, rows, steps):
    """Reset flags ``is_init`` ``[rows, steps]``."""
    is_init = torch.zeros(rows, steps, dtype=torch.bool)
    if pattern == "first":
        is_init[:, 0] = True
    elif pattern == "every step":
        is_init[:] = True
    elif pattern == "last":
        is_init[:, -1] = True
    elif pattern == "random":
        # With this seed, a single row of three or more steps has starts in its middle, but not only starts.
        is_init = torch.rand(rows, steps, generator=torch.Generator().manual_seed(25)) < 0.3
    elif pattern == "one row only":
        is_init[0, steps // 2] = True
    return is_init


def batch(module, is_init):
    """Random inputs and stored states for a module, in its dtype."""
    generator = torch.Generator().manual_seed(1)
    dtype = next(module.parameters()).dtype

    def random(*shape):
        return torch.randn(*is_init.shape[:2], *shape, dtype=torch.float64, generator=generator).to(dtype)

    data = {"x": random(module.layers.input_size), "is_init": is_init}
    for key, spec in module.make_tensordict_primer().primers.items():
        data[key] = random(*spec.shape)
    return TensorDict(data, is_init.shape[:2])


def sequence(module, data):
    """What a module computes of rows, which stay as they are."""
    with set_recurrent_mode(True):
        return module(data.copy())


def outputs_and_gradients(module, data, neighbours=None):
    """The output, the returned states and all gradients, in the module's dtype and on its device.

    The loss weights every element of the output and the states randomly; with ``neighbours``, by a neighbouring number.
    """
    first = next(module.parameters())
    state_keys = [key for key in data.keys(True, True) if key not in ("x", "is_init")]
    inputs = {key: data[key].detach().to(first).requires_grad_() for key in ("x", *state_keys)}
    result = sequence(module, data.copy().to(first.device).update(inputs))
    values = {"y": result["y"], **{f"next {key}": result["next", key] for key in state_keys}}
    generator = torch.Generator().manual_seed(2)
    # Of float32, so that modules of both precisions get the same.
    weights = [torch.randn(value.shape, dtype=torch.float64, generator=generator).float() for value in values.values()]
    if neighbours is not None:
        weights = [neighbouring(weight, neighbours) for weight in weights]
    loss = sum((value * weight.to(value)).sum() for value, weight in zip(values.values(), weights, strict=True))
    # torch.compile prefixes parameter names.
    wanted = inputs | {name.rpartition(".")[2]: parameter for name, parameter in module.named_parameters()}
    gradients = torch.autograd.grad(loss, list(wanted.values()))
    return values | {f"gradient of {name}": value for name, value in zip(wanted, gradients, strict=True)}


def numbers_kept(module, data):
    """How many numbers a sequence keeps for its backward pass, which runs."""
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda it: sizes.append(it.numel()) or it, lambda it: it):
        output = sequence(module, data)["y"]
    kept = sum(sizes)
    output.sum().backward()
    return kept


def neighbouring(value, generator):
    """Each number moved up or down by a unit in the last place of float32, in float64."""
    if not value.is_floating_point():
        return value
    up = torch.randint(2, value.shape, generator=generator).bool()
    return value.double() * torch.where(up, 1 + EPSILON, 1 - EPSILON)


def relative_errors(results, expected):
    """Norm of each difference, relative to the expected value's norm."""
    assert results.keys() == expected.keys()
    return {
        name: float((results[name].detach().double() - value.detach()).norm() / value.norm().clamp(min=1e-30).detach())
        for name, value in expected.items()
    }
