"""Estimates frames per second of K ranks: ``python scripts/scaling.py --ranks 8 64 512 --step-ms 3``.

Weak scaling: each rank collects as many frames whatever the number of ranks. docs/scaling.md has the formulas.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Machine:
    """The unit costs; the defaults are an assumed cluster of nodes of 8 GPUs.

    Attributes:
        parameters: of the policy, in millions, in float32.
        frames: that a rank collects in an iteration.
        collect: frames per second that a rank collects.
        spread: relative standard deviation of the ranks' collection times.
        steps: gradient steps of an iteration.
        step_ms: of a rank's forward and backward pass over its share of a minibatch, and of the optimizer.
        per_node: ranks of a node.
        near: gigabytes per second between ranks of a node, in each direction.
        far: the same between nodes.
        near_us: latency of a message within a node.
        far_us: between nodes.
        frame_bytes: of a frame with its states, for collectors on other machines.
    """

    parameters: float = 1.0
    frames: float = 4096
    collect: float = 20_000
    spread: float = 0.05
    steps: float = 40
    step_ms: float = 3.0
    per_node: float = 8
    near: float = 200.0
    far: float = 25.0
    near_us: float = 5.0
    far_us: float = 20.0
    frame_bytes: float = 1024

    @property
    def gradient_bytes(self) -> float:
        """Of one gradient step."""
        return 4e6 * self.parameters

    def all_reduce_s(self, ranks: int) -> float:
        """A ring within each node, then a tree between nodes."""
        inside = min(ranks, int(self.per_node))
        nodes = math.ceil(ranks / self.per_node)
        near = 2 * (inside - 1) * (self.gradient_bytes / inside / (self.near * 1e9) + self.near_us * 1e-6)
        far = 2 * (nodes - 1) / nodes * self.gradient_bytes / (self.far * 1e9)
        return near + far + 2 * math.ceil(math.log2(nodes)) * self.far_us * 1e-6

    def iteration_s(self, ranks: int) -> tuple[float, float, float]:
        """Collection by the slowest rank, gradient steps, and their all-reduces."""
        slowest = 1 + self.spread * math.sqrt(2 * math.log(ranks)) if ranks > 1 else 1.0
        return (
            self.frames / self.collect * slowest,
            self.steps * self.step_ms * 1e-3,
            self.steps * self.all_reduce_s(ranks),
        )

    def speedup(self, ranks: int) -> float:
        """Frames per second of all ranks, relative to one."""
        return ranks * sum(self.iteration_s(1)) / sum(self.iteration_s(ranks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 64, 512])
    for of in fields(Machine):
        parser.add_argument(f"--{of.name.replace('_', '-')}", type=float, default=of.default)
    arguments = vars(parser.parse_args())
    ranks = arguments.pop("ranks")
    machine = Machine(**arguments)
    # So written that NaN is rejected too.
    if not (min(ranks) >= 1 and machine.per_node >= 1 and min(machine.collect, machine.near, machine.far) > 0):
        parser.error("--ranks and --per-node must be at least 1, and --collect, --near and --far above 0")
    print(
        f"{machine.gradient_bytes / 1e6:g} MB for each gradient step and rank; for a collector on another machine "
        f"{machine.gradient_bytes / 1e6:g} MB out and {machine.frames * machine.frame_bytes / 1e6:g} MB in for each "
        "iteration\n"
    )
    print("| ranks | frames/s | speed-up | efficiency | collect | learn | all-reduce | one all-reduce |")
    print("|---|---|---|---|---|---|---|---|")
    for count in ranks:
        collect, learn, reduce = machine.iteration_s(count)
        speed, gain = count * machine.frames / (collect + learn + reduce), machine.speedup(count)
        times = " | ".join(f"{seconds * 1e3:.0f} ms" for seconds in (collect, learn, reduce))
        one = f"{machine.all_reduce_s(count) * 1e6:.0f} µs"
        print(f"| {count} | {speed:,.0f} | {gain:.1f}× | {gain / count:.0%} | {times} | {one} |")


if __name__ == "__main__":
    main()
