"""Environments that must not be trained in."""

import gymnasium


class Stale(gymnasium.Wrapper):
    """Hands out the last observation of an episode as the first of the next."""

    last = None

    def reset(self, **kwargs):
        first, info = self.env.reset(**kwargs)
        return (first if self.last is None or kwargs.get("seed") is not None else self.last), info

    def step(self, action):
        self.last, *rest = self.env.step(action)
        return self.last, *rest
