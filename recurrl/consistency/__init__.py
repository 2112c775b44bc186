"""The start-up check: does the update see what the rollout saw?

``recorded`` checks the batch alone: episode starts, the chain from step to step, observations after resets.
``network`` replays it as the update does.
"""

from recurrl.consistency.check import TOLERANCE, check_consistency

__all__ = ["TOLERANCE", "check_consistency"]
