"""Environments for recurrent policies.

:func:`make_batched_env` makes them from a :class:`Source`, which ``env.source`` names. A custom source derives from
:class:`GymnasiumSource` if it makes single Gymnasium environments, else from :class:`Source`.
"""

from recurrl.envs.batched import BatchedEnv
from recurrl.envs.making import make_batched_env, make_env
from recurrl.envs.source import GymnasiumSource, Source

__all__ = ["BatchedEnv", "GymnasiumSource", "Source", "make_batched_env", "make_env"]
