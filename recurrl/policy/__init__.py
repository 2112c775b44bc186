"""The network: encoder → recurrent cell → actor and critic heads.

``encoders`` (with ``images``) turns what is observed into one vector, ``memory`` puts the recurrent cell behind it,
``heads`` makes ``distributions`` of actions from its features, and ``actor_critic`` puts them together.
"""

from __future__ import annotations

from recurrl.keys import ACTION, FEATURES, LOG_PROB, OBSERVATION, VALUE
from recurrl.policy.actor_critic import ActorCritic, make_policy

__all__ = ["ACTION", "FEATURES", "LOG_PROB", "OBSERVATION", "VALUE", "ActorCritic", "make_policy"]
