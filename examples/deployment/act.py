"""Acts with an exported policy; needs only numpy and onnxruntime.

python act.py <folder with policy.onnx and policy.json>
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime


class Policy:
    """An exported policy for ``batch`` environments."""

    def __init__(self, folder, batch=1):
        self.told = json.loads((Path(folder) / "policy.json").read_text())
        self.session = onnxruntime.InferenceSession(str(Path(folder) / "policy.onnx"))
        shapes = {name: (batch, *self.told["inputs"][name]["shape"][1:]) for name in self.told["states"]}
        self.state = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}

    def act(self, is_init, **inputs):
        """The action for raw observations; ``is_init`` is true where an episode begins."""
        outputs = [output.name for output in self.session.get_outputs()]
        found = dict(zip(outputs, self.session.run(None, {"is_init": is_init, **inputs, **self.state}), strict=True))
        self.state = {name: found["next." + name] for name in self.state}
        return found["action"]


if __name__ == "__main__":
    policy = Policy(sys.argv[1])
    observed = policy.told["inputs"]["observation"]  # in your program: what the sensors say
    observation = np.zeros((1, *observed["shape"][1:]), observed["dtype"])
    for step in range(5):
        sys.stdout.write(f"{policy.act(np.array([step == 0]), observation=observation)}\n")
