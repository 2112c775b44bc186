"""The recurrent cell behind the encoder, or the feed-forward layer that takes its place.

Shape legend: B batch (any number of dimensions).
"""

from __future__ import annotations

from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import Tensor, nn

from recurrl.config import NO_CELL, TrainConfig
from recurrl.keys import FEATURES
from recurrl.policy.encoders import ENCODED
from recurrl.policy.initialization import TANH_GAIN, linear
from recurrl.recurrent import RecurrentModule
from recurrl.recurrent.cells import load_cell

REMEMBERED = "remembered"


def make_memory(config: TrainConfig, width: int, cell_name: str, prefix: str) -> TensorDictModuleBase:
    """From the encoded observation of ``width`` entries to the features of the heads, ``cell.hidden_size`` of them.

    ``prefix`` comes before the name of every entry that is read or written.
    """
    encoded, remembered, features = prefix + ENCODED, prefix + REMEMBERED, prefix + FEATURES
    residual, layer_norm = config.policy.residual, config.policy.layer_norm
    if not residual and not layer_norm:
        return _make_cell(config, width, cell_name, prefix, features)
    join = Join(width, config.cell.hidden_size, residual, layer_norm)
    return TensorDictSequential(
        _make_cell(config, width, cell_name, prefix, remembered),
        TensorDictModule(join, [remembered, encoded], [features]),
    )


class Join(nn.Module):
    """What leaves the cell, with what entered it added (``residual``), normalised over its features (``layer_norm``).

    Where the two differ in width, a linear map without bias carries what entered (He et al. 2016,
    https://arxiv.org/abs/1512.03385, equation 2).
    """

    def __init__(self, width: int, hidden: int, residual: bool, layer_norm: bool) -> None:
        super().__init__()
        self.residual = residual
        self.shortcut: nn.Module = nn.Identity()
        if residual and width != hidden:
            self.shortcut = linear(width, hidden, gain=1.0, bias=False)
        self.norm: nn.Module = nn.LayerNorm(hidden) if layer_norm else nn.Identity()

    def forward(self, remembered: Tensor, encoded: Tensor) -> Tensor:
        """Features ``[B, hidden]``."""
        features = remembered + self.shortcut(encoded) if self.residual else remembered
        normalised: Tensor = self.norm(features)
        return normalised


def _make_cell(config: TrainConfig, width: int, cell_name: str, prefix: str, out_key: str) -> TensorDictModuleBase:
    cell, encoded = config.cell, prefix + ENCODED
    if cell_name == NO_CELL:
        layers: list[nn.Module] = []
        for _ in range(cell.num_layers):
            layers += [linear(width, cell.hidden_size, TANH_GAIN), nn.Tanh()]
            width = cell.hidden_size
        return TensorDictModule(nn.Sequential(*layers), in_keys=[encoded], out_keys=[out_key])
    states = [f"{prefix}recurrent_state{suffix}" for suffix in load_cell(cell_name).STATES]
    module = RecurrentModule(
        cell_name,
        width,
        cell.hidden_size,
        cell.num_layers,
        recurrent_backend=config.backend.name,
        recurrent_recompute=config.recompute.name,
        recurrent_chunk_len=config.recompute.chunk_len,
        recurrent_matmul_precision=config.precision.name,
        in_keys=[encoded, *states],
        out_keys=[out_key, *(("next", state) for state in states)],
        device=config.device,
    )
    for name, parameter in module.layers.named_parameters():
        if name.startswith("weight"):
            for gate in parameter.data.chunk(module.cell.GATES):
                nn.init.orthogonal_(gate)
        else:
            nn.init.zeros_(parameter)
    return module
