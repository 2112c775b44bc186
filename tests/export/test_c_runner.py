"""The runner in C does what onnxruntime does from Python. It needs onnxruntime's headers, which its wheel lacks."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import recurrl
from recurrl.export.export import export

SOURCE = Path(__file__).parent.parent.parent / "examples" / "deployment" / "act.c"
PLACES = ("/usr/include/onnxruntime", "/usr/local/include/onnxruntime", "/usr/local/include", "/usr/include")


def headers():
    """The folder with ``onnxruntime_c_api.h``, of a release's archive or a system's package."""
    places = [os.environ.get("ONNXRUNTIME_INCLUDE", "nowhere"), *PLACES]
    return next((Path(each) for each in places if (Path(each) / "onnxruntime_c_api.h").is_file()), None)


def test_the_runner_in_c_acts_as_onnxruntime_does_from_python(finished_run, tmp_path):
    include = headers()
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if include is None or compiler is None:
        missing = "a C compiler" if include else "the headers of onnxruntime: set ONNXRUNTIME_INCLUDE to their folder"
        pytest.skip(f"needs {missing}")
    import onnxruntime

    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (tmp_path / name).symlink_to(library)
    export(recurrl.load(finished_run), tmp_path, {}, formats=["onnx"])
    strict = ["-Wall", "-Wextra", "-Werror", "-O2"]
    linked = ["-I", str(include), "-L", str(tmp_path), "-lonnxruntime", f"-Wl,-rpath,{tmp_path}"]
    subprocess.run([compiler, *strict, str(SOURCE), *linked, "-o", "act"], cwd=tmp_path, check=True, timeout=120)
    done = subprocess.run(["./act", "policy.onnx", "12"], cwd=tmp_path, check=True, capture_output=True, text=True)

    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    names = [each.name for each in session.get_outputs()]
    state = {name[5:]: np.zeros((1, 1, 8), np.float32) for name in names if name.startswith("next.")}
    expected = []
    for step in range(12):
        observation = np.array([[np.float32(0.1) * np.float32(step), 0, 0, 0]], np.float32)
        values = session.run(None, {"observation": observation, "is_init": np.array([step == 0]), **state})
        outputs = dict(zip(names, values, strict=True))
        state = {name: outputs[f"next.{name}"] for name in state}
        expected.append(str(outputs["action"][0]))
    assert done.stdout.split() == expected
    assert len(set(expected)) > 1
