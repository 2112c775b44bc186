"""Steps on a device that is not there, to see where they would wait for a GPU.

Tensors of the device ``meta``, and those of a fake GPU, have shapes and no values. Under :class:`Waits` whatever reads
a value is noted, and answered with true, one or ones, so that whole steps run: on ``meta`` their backward passes too;
on a fake GPU what mixes its tensors with the host's, which are real, fails.
"""

import traceback
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from recurrl.envs import BatchedEnv
from recurrl.envs.spaces import raw_specs

PACKAGE = str(Path(__file__).parents[2] / "recurrl")
GPU, FAKE = torch.device("cuda", 0), FakeTensorMode(allow_non_fake_inputs=True)
"""One mode for all tests, because some constants are cached by device."""
THREE_NUMBERS, FOUR_CHOICES = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(4)
aten = torch.ops.aten
INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
COMPARISONS = (aten.allclose.default, aten.equal.default)
SIZES = (aten.nonzero.default, aten.masked_select.default)


class Waits(TorchDispatchMode):
    """Notes what reads values that are not there: a value, a size that depends on values, or a copy to the host.

    Attributes:
        places: how often each file of the package did.
    """

    def __init__(self):
        super().__init__()
        self.places = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        metas = [leaf for leaf in tree_leaves((args, kwargs)) if has_no_values(leaf)]
        if not metas and torch.device(kwargs.get("device") or "cpu").type != "cuda":
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if func is aten._local_scalar_dense.default and metas:
            return self._noted(True if metas[0].dtype == torch.bool else 1.0 if metas[0].is_floating_point() else 1)
        if func in COMPARISONS and metas:
            return self._noted(True)
        if func is aten._unique2.default and metas:
            flat = metas[0].flatten()
            return self._noted((flat, torch.zeros_like(metas[0]), torch.zeros_like(flat)))
        if func in SIZES and metas:
            return self._noted(metas[0].new_zeros(metas[0].numel(), metas[0].ndim, dtype=torch.long))
        if func in INDEXING and metas and any(each is not None and each.dtype == torch.bool for each in args[1]):
            args = self._noted((args[0], [index for each in args[1] for index in everywhere(each)], *args[2:]))
        if func is aten._to_copy.default and metas and torch.device(kwargs.get("device") or "meta").type == "cpu":
            with unset_fake_temporarily():
                return self._noted(torch.ones(metas[0].shape, dtype=kwargs.get("dtype") or metas[0].dtype))
        if func is aten.copy_.default and metas and not has_no_values(args[0]):
            return self._noted(args[0].fill_(1))
        return func(*args, **kwargs)

    def _noted(self, answer):
        """The answer, once it has been noted where it is read."""
        ours = [frame.filename for frame in traceback.extract_stack() if frame.filename.startswith(PACKAGE)]
        self.places[Path(ours[-1]).name if ours else "a test"] += 1
        return answer


@contextmanager
def fake_gpu():
    """The device :data:`GPU` exists. Yields where the package waits for it."""
    # Fused kernels would look for a driver; the Python dispatcher has decompositions of them.
    with enable_python_dispatcher(), FAKE, Waits() as waits:
        yield waits.places


def moved(module, device):
    """``Module.to`` with the same result; its own way of replacing parameters fails with those of a fake GPU."""
    for each in module.modules():
        for name, value in (*each.named_parameters(recurse=False), *each.named_buffers(recurse=False)):
            if value.device != torch.device(device):
                there = value.detach().to(device)
                is_parameter = isinstance(value, torch.nn.Parameter)
                setattr(each, name, torch.nn.Parameter(there, value.requires_grad) if is_parameter else there)
    return module


def has_no_values(value):
    return isinstance(value, FakeTensor) or (isinstance(value, torch.Tensor) and value.device.type == "meta")


def everywhere(index):
    """For a mask, the indices of a mask that is true everywhere; other indices as they are."""
    if index is None or index.dtype != torch.bool:
        return [index]
    return [index.new_zeros(index.numel(), dtype=torch.long) for _ in range(index.ndim)]


class Nowhere(BatchedEnv):
    """Environments on a device without anything in them, by default of three numbers and four actions.

    Args:
        num_envs: their number.
        device: where they are.
        observation: the space of an observation.
        action: the space of an action.
        masked: they give masks of actions with their observations.
    """

    def __init__(self, num_envs, device, observation=THREE_NUMBERS, action=FOUR_CHOICES, masked=False):
        specs, action_spec = raw_specs("env", observation, action, num_envs, masked)
        specs = {key: spec.to(device) for key, spec in specs.items()}
        super().__init__(num_envs, specs, action_spec.to(device), device)
        self._nothing = dict(self.observation_spec.zero().items(True, True))

    def step_tensors(self, action):
        count, device = self.batch_size[0], self.device
        assert {part.device for part in tree_leaves(action)} == {device}
        no = torch.zeros(count, 1, dtype=torch.bool, device=device)
        results = {"terminated": no, "truncated": no.clone(), "done": no.clone()}
        return {**self._nothing, "reward": torch.zeros(count, 1, device=device), **results}

    def reset_tensors(self, mask):
        assert mask is None or mask.device == self.device
        return dict(self._nothing)

    def start_in_groups(self, size, seed):
        """All episodes are the same."""

    def _set_seed(self, seed):
        """Nothing is random."""
