"""Recurrent layers for reinforcement learning: mid-sequence resets, stored states, several backends.

Independent of the configuration and of the training code: everything is passed as plain arguments.
"""

from torchrl.modules import GRU, LSTM, GRUCell, LSTMCell, canonicalize_rnn_subset, recurrent_mode, set_recurrent_mode

from recurrl.recurrent.cell import Cell
from recurrl.recurrent.gated import GatedCell
from recurrl.recurrent.module import RecurrentModule
from recurrl.recurrent.module.drop_in import GRUModule, LSTMModule
from recurrl.recurrent.precision import get_recurrent_matmul_precision, set_recurrent_matmul_precision

__all__ = [
    "GRU",
    "LSTM",
    "Cell",
    "GRUCell",
    "GRUModule",
    "GatedCell",
    "LSTMCell",
    "LSTMModule",
    "RecurrentModule",
    "canonicalize_rnn_subset",
    "get_recurrent_matmul_precision",
    "recurrent_mode",
    "set_recurrent_matmul_precision",
    "set_recurrent_mode",
]
