"""Acts with an exported policy; needs only numpy and onnxruntime. Prints five actions for observations of zeros."""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime


class Policy:
    """An exported policy for ``batch`` environments."""

    def __init__(self, folder, batch=1):
        self.description = json.loads((Path(folder) / "policy.json").read_text())
        self.session = onnxruntime.InferenceSession(str(Path(folder) / "policy.onnx"))
        shapes = {name: (batch, *self.description["inputs"][name]["shape"][1:]) for name in self.description["states"]}
        self.state = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}

    def act(self, is_init, observation, **inputs):
        """The action for a raw observation: arrays of a batch, in dicts or tuples as the environment returns them.

        ``is_init`` is true where an episode begins. The parts of an action are in dicts, those of a tuple by number.
        """
        inputs = {"is_init": is_init, **flat("observation", observation), **inputs, **self.state}
        outputs = [output.name for output in self.session.get_outputs()]
        takes = {name: value for name, value in inputs.items() if name in self.description["inputs"]}
        found = dict(zip(outputs, self.session.run(None, takes), strict=True))
        self.state = {name: found["next." + name] for name in self.state}
        return nested({name: value for name, value in found.items() if name.split(".")[0] == "action"})["action"]


def flat(name, value):
    """The arrays in dicts and tuples by their names with dots."""
    if not isinstance(value, dict | tuple):
        return {name: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return {path: leaf for key, part in parts for path, leaf in flat(f"{name}.{key}", part).items()}


def nested(arrays):
    """Arrays by their names with dots as nested dicts."""
    found = {}
    for name, array in arrays.items():
        inner, (*outer, last) = found, name.split(".")
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = array
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="the folder with policy.onnx and policy.json")
    policy = Policy(parser.parse_args().folder)
    inputs = {name: np.zeros((1, *of["shape"][1:]), of["dtype"]) for name, of in policy.description["inputs"].items()}
    inputs = nested({name: zeros for name, zeros in inputs.items() if name not in ("is_init", *policy.state)})
    for step in range(5):  # in your program: what the sensors say
        sys.stdout.write(f"{policy.act(np.array([step == 0]), **inputs)}\n")
