"""The model card of a policy: a README that people read, with a header that model hubs read.

The header follows https://github.com/huggingface/hub-docs/blob/main/modelcard.md.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml  # type: ignore[import-untyped]

from recurrl.config import TrainConfig
from recurrl.returns import table_row

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


def model_card(
    config: TrainConfig,
    statistics: Mapping[str, Any],
    *,
    frames: int,
    evaluation_seed: int,
    version: str,
    files: Sequence[str],
    needs_trust: bool,
) -> str:
    """The text of a model card.

    Args:
        config: the run's configuration.
        statistics: the statistics of an evaluation, see :func:`recurrl.returns.summarized`.
        frames: frames of training.
        evaluation_seed: the seed of the evaluation.
        version: recurrl's version.
        files: the names of the files in the folder.
        needs_trust: the configuration names packages to import.
    """
    env, cell, algorithm = config.env.id, config.cell.name, config.algorithm.name
    mean, spread, interval, *_ = table_row(statistics, "episodes")
    count = statistics["episodes"]
    metric = {"type": "mean_reward", "name": "mean_reward", "value": f"{mean} +/- {spread}", "verified": False}
    task, dataset = {"type": _KIND, "name": _KIND}, {"type": env, "name": env}
    header = {
        "library_name": "recurrl",
        "pipeline_tag": _KIND,
        "tags": [env, _KIND, "deep-reinforcement-learning", "recurrent", cell, algorithm],
        "model-index": [
            {"name": f"{algorithm}-{cell}", "results": [{"task": task, "dataset": dataset, "metrics": [metric]}]}
        ],
    }
    hides = f", without entries {', '.join(map(str, config.env.mask))} of the observation" if config.env.mask else ""
    facts = f"""| | |
|---|---|
| task | `{env}`{hides} |
| return | {mean} ± {spread} over {count} episode{"s" * (count != 1)}; 95% interval of the mean: {interval} |
| evaluated with | the most probable actions, seed {evaluation_seed}, which training did not use |
| trained for | {frames:,} frames, seed {config.seed} |
| network | {cell}, {config.cell.hidden_size} features |"""
    evaluation = f"--device cpu --seed {evaluation_seed} --episodes {count}"
    evaluation += " --trust-packages" if needs_trust else ""
    paragraphs = [
        f"---\n{yaml.safe_dump(header, sort_keys=False, allow_unicode=True)}---",
        f"# {algorithm.upper()} with {cell} on {env}",
        "![An episode](replay.gif)" if "replay.gif" in files else "",
        f"A policy trained with recurrl {version}.",
        facts,
        "## Use",
        _USE.format(trust=", trust_packages=True" if needs_trust else ""),
        _TRUST if needs_trust else "",
        f"Loading runs no code of this folder. The same evaluation: `recurrl-evaluate FOLDER {evaluation}`.",
        _ONNX if "policy.onnx" in files else "",
        "## Training",
        "Everything is in `config.yaml`, which `recurrl.train` takes as a mapping.",
    ]
    return "\n\n".join(filter(None, paragraphs)) + "\n"
