"""A trained policy that acts in its environment: raw observations in, the environment's own actions out."""

from recurrl.agent.agent import Agent, AgentState

__all__ = ["Agent", "AgentState"]
