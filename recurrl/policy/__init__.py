"""The network: encoder → recurrent cell → actor and critic heads.

``policy`` has :class:`Policy`, whose ``step`` and ``sequence`` everything else calls. It consists of a trunk
(``preprocessing`` of observations, one of the ``encoders``, and the recurrent cell) and heads, which map features to
``distributions`` of actions. ``build`` makes it from the configuration, and ``tensordict_module`` lets TorchRL call it.
"""

from recurrl.keys import ACTION, LOG_PROB, OBSERVATION, VALUE
from recurrl.policy.build import make_policy
from recurrl.policy.policy import Policy, Trunk
from recurrl.policy.tensordict_module import PolicyModule

__all__ = ["ACTION", "LOG_PROB", "OBSERVATION", "VALUE", "Policy", "PolicyModule", "Trunk", "make_policy"]
