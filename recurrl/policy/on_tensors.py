"""A policy of TensorDict modules as a list of operations on plain tensors: the same modules, without TensorDicts.

Shape legend: N environments, A actions, S slices, K steps of a slice, I input size, X size of a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import is_not
from typing import Any, NamedTuple, TypeGuard, cast

import torch
from tensordict import TensorDictBase
from tensordict.nn import (
    CompositeDistribution,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
)
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn import functional
from torch.nn.modules.module import _has_any_global_hook

from recurrl.keys import VALUE
from recurrl.policy.actor_critic import ActorCritic
from recurrl.policy.distributions import allowed, categorical
from recurrl.recurrent import RecurrentModule
from recurrl.recurrent.backends import LayerWeights, step
from recurrl.recurrent.cells import Cell
from recurrl.recurrent.layer import directions, weights_of

Tensors = dict[NestedKey, Tensor]
Operation = Callable[[Tensors], None]
"""Reads entries of batch size ``[N]`` and adds others."""


class Later(NamedTuple):
    """What no step reads, and row by row is the same for many steps at once."""

    writes: NestedKey
    reads: list[NestedKey]
    compute: Callable[..., Tensor]
    """Of the entries that it reads, with any leading dimensions."""


Linear = Callable[[nn.Linear], Callable[[Tensor], Tensor]]


class UnknownPartError(Exception):
    """A part of a policy or an environment that is known on TensorDicts only; the message says which."""


def operations(policy: nn.Module) -> tuple[list[Operation], list[Later]]:
    """What calling ``policy`` on one step does, sampling its actions, in order; and what of it may wait.

    But for two things, for the sake of speed: recurrent states are not reset, they have to be zero where an episode
    starts; and nobody looks whether probabilities are finite, so that has to be seen to by their logarithms.

    They hold the parameters that the policy has now, whose values may change, but which must not be exchanged.

    Raises:
        UnknownPartError: the policy holds a module of another kind than those below, which may do anything.
    """
    modules = list(leaves(policy))
    read = {key for module in modules for key in module.in_keys}
    steps, waiting = [], []
    for module in modules:
        if _chooses(module) and module.log_prob_key not in read:
            step, later = _choosing(module)
            waiting.append(later)
        else:
            step = _operation(module, _recurrent_step, _fixed_linear)
        steps.append(step)
    return steps, waiting


class Replay:
    """What a policy makes of slices ``[S, K]`` that it learns from, each from the states stored at its first step.

    Args:
        policy: the policy; it computes with its own parameters, as they are at the time of the call. Hooks of its
            networks are called if they are there by now.

    Raises:
        UnknownPartError: the policy holds a module of a kind that is known on TensorDicts only.
    """

    def __init__(self, policy: ActorCritic) -> None:
        acting = policy.acting()
        self._operations = [
            _operation(module, _recurrent_sequence, _linear)
            for module in leaves(acting)
            if module is not policy.sampler
        ]
        self._sampler = policy.sampler
        self._keys = list(acting.in_keys)

    def __call__(self, slices_SK: TensorDictBase) -> tuple[Distribution, Tensor | None]:
        """The distributions of the actions, and the values ``[S, K, 1]`` if there is a critic.

        Raises:
            KeyError: an entry is missing.
        """
        data = {key: slices_SK[key] for key in self._keys}
        for operation in self._operations:
            operation(data)
        return self._sampler.get_dist(data), data.get(VALUE)


def leaves(policy: Any) -> Iterator[TensorDictModuleBase]:
    """The modules of a sequence, those of sequences within it in their place."""
    # Exact types: a subclass may do anything.
    if type(policy) not in (TensorDictSequential, ProbabilisticTensorDictSequential):
        yield policy
        return
    for module in policy.module:
        yield from leaves(module)


def _operation(module: nn.Module, recurrent: Callable[[RecurrentModule], Operation], linear: Linear) -> Operation:
    if isinstance(module, RecurrentModule):
        return recurrent(module)
    if type(module) is ProbabilisticTensorDictModule:
        return _sampling(module)
    if type(module) is TensorDictModule:
        return _network(module, linear)
    raise UnknownPartError(f"the policy has a module of type {type(module).__name__}")


def _network(module: TensorDictModule, linear: Linear) -> Operation:
    if module._kwargs is not None or module.method is not None or module.inplace is not True:
        raise UnknownPartError(f"the policy calls {type(module.module).__name__} in a way of its own")
    network, in_keys, out_keys = _flat(module.module, linear), module.in_keys, module.out_keys

    def run(data: Tensors) -> None:
        outputs = network(*[data[key] for key in in_keys])
        data.update(zip(out_keys, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))

    return run


def _flat(network: nn.Module, linear: Linear) -> Callable[..., Any]:
    """A network as a function of its own: what torch does around every module takes as long as a small one."""
    if _has_hooks(network) or type(network).__call__ is not nn.Module.__call__:
        return network
    # Exact types: a subclass may do anything.
    if type(network) is nn.Linear:
        return linear(network)
    if type(network) is nn.Tanh:
        return torch.tanh
    if type(network) is not nn.Sequential:
        return network.forward
    layers = [_flat(layer, linear) for layer in network.children()]

    def run(value: Any) -> Any:
        for layer in layers:
            value = layer(value)
        return value

    return run


def _linear(network: nn.Linear) -> Callable[[Tensor], Tensor]:
    """With the parameters that there are at the call: somebody may exchange them."""
    return lambda value: functional.linear(value, network.weight, network.bias)


def _fixed_linear(network: nn.Linear) -> Callable[[Tensor], Tensor]:
    """With the parameters that there are now, transposed once."""
    weight, general = network.weight.t(), _linear(network)
    bias: Tensor | None = network.bias
    if bias is None:
        return general
    return lambda value: torch.addmm(bias, value, weight) if value.ndim == 2 else general(value)


def _has_hooks(network: nn.Module) -> bool:
    own = (
        network._forward_pre_hooks,
        network._forward_hooks,
        network._backward_pre_hooks,
        network._backward_hooks,
        network._compiled_call_impl,
    )
    return any(own) or bool(_has_any_global_hook())


def _recurrent_sequence(module: RecurrentModule) -> Operation:
    input_key, *state_keys, init_key = module.in_keys
    output_key = module.out_keys[0]

    def run(data: Tensors) -> None:
        starts = data[init_key]
        states = tuple(data[key] for key in state_keys)
        data[output_key], _ = module.run(data[input_key], starts.reshape(starts.shape[:2]), states, sequence=True)

    return run


def _recurrent_step(module: RecurrentModule) -> Operation:
    input_key, *state_keys, _ = module.in_keys
    output_key, *new_state_keys = module.out_keys

    cell, layers = module.cell, module.layers
    if directions(layers) > 1 or layers.dropout > 0:
        raise UnknownPartError("the policy has a recurrent layer in both directions, or with dropout")
    weights = [weights_of(cell, layers, layer, 0) for layer in range(layers.num_layers)]

    # What the last step left, and the layers that it is made of. Mostly the next step enters with just that.
    left: tuple[list[Tensor], list[tuple[Tensor, ...]]] = ([], [])

    def run(data: Tensors) -> None:
        """As :func:`recurrl.recurrent.layer.run_step`, but for resets."""
        nonlocal left
        entering = [data[key] for key in state_keys]
        whole, layered = left
        if not whole or any(map(is_not, entering, whole)):
            layered = list(zip(*[state.unbind(1) for state in entering], strict=True))
        output = data[input_key]
        new_states = []
        for weight, states in zip(weights, layered, strict=True):
            new_states.append(_step(cell, weight, output, states))
            output = new_states[-1][0]
        data[output_key] = output
        whole = [
            layers_N[0].unsqueeze(1) if len(layers_N) == 1 else torch.stack(layers_N, 1)
            for layers_N in zip(*new_states, strict=True)
        ]
        data.update(zip(new_state_keys, whole, strict=True))
        left = whole, new_states

    return run


def _step(cell: Cell, weight: LayerWeights, input_NI: Tensor, states_NX: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    on_cpu = input_NI.device.type == "cpu"
    if cell.TORCH is nn.LSTM and on_cpu and weight.w_hh is not None and weight.w_hr is None:
        # On a CPU the same operations in one call. (Of the GRU's gates, torch.gru_cell rounds some otherwise.)
        return torch.lstm_cell(input_NI, states_NX, weight.w_ih, weight.w_hh, weight.b_ih, weight.b_hh)
    x_gates = functional.linear(input_NI, weight.w_ih, weight.b_ih)
    return step(cell, weight, x_gates, states_NX)


def _sampling(module: ProbabilisticTensorDictModule) -> Operation:
    if isinstance(module.distribution_class, type) and issubclass(module.distribution_class, CompositeDistribution):
        raise UnknownPartError("the policy samples several actions at once")
    if module.num_samples is not None or not module.return_log_prob:
        raise UnknownPartError("the policy samples in a way of its own")
    (action_key,), log_prob_key = module.dist_sample_keys, module.log_prob_key

    def run(data: Tensors) -> None:
        distribution = module.get_dist(data)
        action = distribution.rsample() if distribution.has_rsample else distribution.sample()
        data[action_key] = action
        data[log_prob_key] = distribution.log_prob(action)

    return run


def _chooses(module: Any) -> TypeGuard[ProbabilisticTensorDictModule]:
    """Whether a module samples one choice of a few, as :func:`recurrl.policy.distributions.categorical` gives them."""
    return (
        type(module) is ProbabilisticTensorDictModule
        and module.distribution_class is categorical
        and list(cast(Any, module.dist_keys)) in (["logits"], ["logits", "mask"])
        and module.num_samples is None
        and bool(module.return_log_prob)
    )


def _choosing(module: ProbabilisticTensorDictModule) -> tuple[Operation, Later]:
    (action_key,), keys = module.dist_sample_keys, list(module.in_keys)

    def choose(data: Tensors) -> None:
        """The smallest of exponential variables with the choices' rates is each with its probability.

        That is what torch.multinomial does for one sample, after longer looks at the probabilities.
        """
        probs_NA = functional.softmax(allowed(*[data[key] for key in keys]), -1)
        data[action_key] = probs_NA.div_(torch.empty_like(probs_NA).exponential_()).argmax(-1)

    def log_prob(action: Tensor, *given: Tensor) -> Tensor:
        return categorical(*given).log_prob(action)

    return choose, Later(module.log_prob_key, [action_key, *keys], log_prob)
