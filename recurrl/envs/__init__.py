"""Environments for recurrent policies: batched, seeded, with episode starts, recurrent states and returns marked.

:func:`make_env` builds them from a :class:`Source`, which ``env.source`` names. A source of your own derives from
:class:`GymnasiumSource` if it makes single Gymnasium environments, else from :class:`Source`.
"""

from recurrl.envs.gymnasium_source import GymnasiumSource
from recurrl.envs.making import EPISODE_LENGTH, EPISODE_RETURN, make_env
from recurrl.envs.source import Source
from recurrl.envs.tensors import TensorEnv

__all__ = ["EPISODE_LENGTH", "EPISODE_RETURN", "GymnasiumSource", "Source", "TensorEnv", "make_env"]
