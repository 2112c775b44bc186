"""Steps on a device that is not there, to see where they would wait for a GPU.

Tensors of the device ``meta`` have shapes and no values. Under :class:`Waits` whatever reads a value is noted, and
answered with true, one or ones, so that whole steps run, their backward passes too.
"""

import traceback
from collections import Counter
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torchrl.data import Categorical, Unbounded

from recurrl.envs import BatchedEnv

PACKAGE = str(Path(__file__).parents[2] / "recurrl")
aten = torch.ops.aten
INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
SIZES = (aten.nonzero.default, aten.masked_select.default)


class Waits(TorchDispatchMode):
    """Notes what reads values of ``meta`` tensors: a value, a size that depends on values, or a copy to the host.

    Attributes:
        places: how often each file of the package did.
    """

    def __init__(self):
        super().__init__()
        self.places = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        metas = [leaf for leaf in tree_leaves((args, kwargs)) if is_meta(leaf)]
        if func is aten._local_scalar_dense.default and metas:
            self._note()
            return True if metas[0].dtype == torch.bool else 1.0 if metas[0].is_floating_point() else 1
        if func in SIZES and metas:
            self._note()
            return metas[0].new_zeros(metas[0].numel(), metas[0].ndim, dtype=torch.long)
        if func in INDEXING and metas and any(each is not None and each.dtype == torch.bool for each in args[1]):
            self._note()
            args = (args[0], [index for each in args[1] for index in everywhere(each)], *args[2:])
        if func is aten._to_copy.default and metas and torch.device(kwargs.get("device") or "meta").type == "cpu":
            self._note()
            return torch.ones(metas[0].shape, dtype=kwargs.get("dtype") or metas[0].dtype)
        if func is aten.copy_.default and metas and not is_meta(args[0]):
            self._note()
            return args[0].fill_(1)
        return func(*args, **kwargs)

    def _note(self):
        ours = [frame.filename for frame in traceback.extract_stack() if frame.filename.startswith(PACKAGE)]
        self.places[Path(ours[-1]).name if ours else "a test"] += 1


def is_meta(value):
    return isinstance(value, torch.Tensor) and value.device.type == "meta"


def everywhere(index):
    """For a mask, the indices of a mask that is true everywhere; other indices as they are."""
    if index is None or index.dtype != torch.bool:
        return [index]
    return [index.new_zeros(index.numel(), dtype=torch.long) for _ in range(index.ndim)]


class Nowhere(BatchedEnv):
    """Environments on a device, of three numbers and four actions, without anything in them."""

    def __init__(self, num_envs, device):
        action = Categorical(4, shape=(num_envs,), device=device)
        super().__init__(num_envs, {"observation": Unbounded((num_envs, 3), device=device)}, action, device)

    def step_tensors(self, action):
        count, device = self.batch_size[0], action.device
        assert device == self.device
        results = {
            name: torch.zeros(count, 1, dtype=torch.bool, device=device) for name in ("terminated", "truncated", "done")
        }
        return {**self.reset_tensors(None), "reward": torch.zeros(count, 1, device=device), **results}

    def reset_tensors(self, mask):
        assert mask is None or mask.device == self.device
        return {"observation": torch.zeros(self.batch_size[0], 3, device=self.device)}

    def _set_seed(self, seed):
        """Nothing is random."""
