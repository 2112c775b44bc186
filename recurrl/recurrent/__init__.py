"""Recurrent layers for reinforcement learning: resets in mid-sequence, stored states, several kernels.

Stands alone: plain arguments, no configuration, no training code.
"""

from torchrl.modules import recurrent_mode, set_recurrent_mode

from recurrl.recurrent.module import GRUModule, LSTMModule, RecurrentModule

__all__ = ["GRUModule", "LSTMModule", "RecurrentModule", "recurrent_mode", "set_recurrent_mode"]
