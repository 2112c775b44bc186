"""The learning rate: a linear schedule, or one that follows the KL of the gradient steps."""

from torch.optim import Optimizer

from recurrl.losses.schedule import annealed

# An adaptive learning rate changes by this factor when the KL of a step is twice or half the desired one, within these
# bounds (Schulman's rule, with the values of Rudin et al. 2022, https://arxiv.org/abs/2109.11978).
FACTOR = 1.5
BOUNDS = (1e-5, 1e-2)


class LearningRate:
    """Sets the learning rate of an optimizer.

    Args:
        optimizer: it starts with the initial learning rate.
        schedule: ``linear`` or ``adaptive``.
        final_fraction: for ``linear``, the fraction of the initial rate at the end.
        desired_kl: for ``adaptive``, the KL of a gradient step to aim at.
    """

    def __init__(self, optimizer: Optimizer, schedule: str, final_fraction: float, desired_kl: float) -> None:
        self._optimizer = optimizer
        self._start, self._final_fraction, self._desired_kl = self.value, final_fraction, desired_kl
        self.is_adaptive = schedule == "adaptive"

    @property
    def value(self) -> float:
        """The current learning rate."""
        rate: float = self._optimizer.param_groups[0]["lr"]
        return rate

    def begin_iteration(self, progress: float) -> None:
        """Sets a linear schedule's rate for a fraction of the run's frames."""
        if not self.is_adaptive:
            self._set(annealed(self._start, self._final_fraction, progress))

    def adapt(self, kl: float) -> None:
        """Adapts the rate to the KL of the last gradient step."""
        if kl > 2 * self._desired_kl:
            self._set(max(self.value / FACTOR, BOUNDS[0]))
        elif kl < self._desired_kl / 2:
            self._set(min(self.value * FACTOR, BOUNDS[1]))

    def _set(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
