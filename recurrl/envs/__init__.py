"""Environments for recurrent policies: batched, seeded, with episode starts, recurrent states and returns marked.

:func:`make_env` builds them from a :class:`Source`, which ``env.source`` names. A source of your own derives from
:class:`GymnasiumSource` if it makes single Gymnasium environments, else from :class:`Source`.
"""

from recurrl.envs.checks import check, check_rows, check_seeds
from recurrl.envs.episode_return import EpisodeReturn
from recurrl.envs.gymnasium_source import GymnasiumSource
from recurrl.envs.making import EPISODE_LENGTH, EPISODE_RETURN, make_env
from recurrl.envs.random_actions import act_at_random
from recurrl.envs.source import Source
from recurrl.envs.states import check_states, recurrent_modules
from recurrl.envs.tensors import TensorEnv

__all__ = [
    "EPISODE_LENGTH",
    "EPISODE_RETURN",
    "EpisodeReturn",
    "GymnasiumSource",
    "Source",
    "TensorEnv",
    "act_at_random",
    "check",
    "check_rows",
    "check_seeds",
    "check_states",
    "make_env",
    "recurrent_modules",
]
