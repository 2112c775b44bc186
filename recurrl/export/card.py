"""The model card of a policy: a README that people read, with a header that model hubs read.

The header follows https://github.com/huggingface/hub-docs/blob/main/modelcard.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped]

_KIND = "reinforcement-learning"
_USE = """```python
import recurrl

agent = recurrl.load("FOLDER"{trust})  # this folder
env, state, over = agent.make_env(), agent.initial_state(), False
observation, _ = env.reset()
while not over:
    action, state = agent.act(observation, state)
    observation, reward, terminated, truncated, _ = env.step(action)
    over = terminated or truncated
```"""
_TRUST = "The configuration names packages of its author, which `trust_packages` imports: read them first."
_ONNX = "`policy.onnx` needs only onnxruntime; `policy.json` says what goes in and out."
_NO_LICENSE = "No license was given: ask the author before you use it."


@dataclass(frozen=True)
class Card:
    """What a model card says.

    Attributes:
        env: the environment's id.
        mask: indices of the observation that the policy does not see.
        cell: the recurrent cell.
        hidden_size: the width of the cell.
        algorithm: that trained it.
        frames: of training.
        seed: of training.
        found: the statistics of its evaluation, see :func:`recurrl.returns.summarized`.
        evaluation_seed: of the evaluation.
        version: of recurrl.
        license: the identifier of its license; None without a license.
        files: in the folder.
        needs_trust: the configuration names packages to import.
    """

    env: str
    mask: Sequence[int]
    cell: str
    hidden_size: int
    algorithm: str
    frames: int
    seed: int
    found: Mapping[str, Any]
    evaluation_seed: int
    version: str
    license: str | None
    files: Sequence[str]
    needs_trust: bool

    def text(self) -> str:
        """The file."""
        header = yaml.safe_dump(self.header(), sort_keys=False, allow_unicode=True)
        return f"---\n{header}---\n\n{self._body()}"

    def header(self) -> dict[str, Any]:
        """The metadata."""
        value = f"{self.found['mean']:.2f} +/- {self.found['std']:.2f}"
        result = {
            "task": {"type": _KIND, "name": _KIND},
            "dataset": {"type": self.env, "name": self.env},
            "metrics": [{"type": "mean_reward", "name": "mean_reward", "value": value, "verified": False}],
        }
        return {
            **({"license": self.license} if self.license else {}),
            "library_name": "recurrl",
            "pipeline_tag": _KIND,
            "tags": [self.env, _KIND, "deep-reinforcement-learning", "recurrent", self.cell, self.algorithm],
            "model-index": [{"name": f"{self.algorithm}-{self.cell}", "results": [result]}],
        }

    def _body(self) -> str:
        trust = ", trust_packages=True" if self.needs_trust else ""
        option = " --trust-packages" if self.needs_trust else ""
        evaluation = f"--device cpu --seed {self.evaluation_seed} --episodes {self.found['episodes']}{option}"
        paragraphs = [
            f"# {self.algorithm.upper()} with {self.cell} on {self.env}",
            "![An episode](replay.gif)" if "replay.gif" in self.files else "",
            f"A policy trained with recurrl {self.version}.",
            self._facts(),
            "## Use",
            _USE.format(trust=trust),
            _TRUST if self.needs_trust else "",
            f"Loading runs no code of this folder. The same evaluation: `recurrl-evaluate FOLDER {evaluation}`.",
            _ONNX if "policy.onnx" in self.files else "",
            "## Training",
            "Everything is in `config.yaml`, which `recurrl.train` takes as a mapping.",
            "## License",
            self.license or _NO_LICENSE,
        ]
        return "\n\n".join(filter(None, paragraphs)) + "\n"

    def _facts(self) -> str:
        low, high = self.found["interval_95"]
        hides = f", without entries {', '.join(map(str, self.mask))} of the observation" if self.mask else ""
        episodes = f"{self.found['mean']:.2f} ± {self.found['std']:.2f} over {self.found['episodes']} episodes"
        rows = {
            "task": f"`{self.env}`{hides}",
            "return": f"{episodes}; 95% interval of the mean {low:.2f} to {high:.2f}",
            "evaluated with": f"the most probable actions, seed {self.evaluation_seed}, which training did not use",
            "trained for": f"{self.frames:,} frames, seed {self.seed}",
            "network": f"{self.cell}, {self.hidden_size} features",
        }
        return "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())])
