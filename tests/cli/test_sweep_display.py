"""What a terminal shows while a sweep runs."""

from __future__ import annotations

import json
import os
import re
import time

from recurrl.cli.sweep_display import display

from recurrl.tracking.progress import SWITCH


def write(run_dir, overrides, files):
    (run_dir / ".hydra").mkdir(parents=True)
    (run_dir / ".hydra" / "overrides.yaml").write_text("".join(f"- {text}\n" for text in overrides))
    for name, text in files.items():
        (run_dir / name).write_text(text)


def test_a_terminal_shows_the_jobs_that_run_and_how_many_have_ended(tmp_path, monkeypatch):
    ended = {"status": "completed", "eval_return_mean": 12.5, "error": None}
    write(tmp_path / "0", ["seed=0", "cell=gru"], {"summary.json": json.dumps(ended)})
    write(tmp_path / "1", ["seed=1", "cell=gru"], {"summary.json": json.dumps({"status": "failed", "error": "x"})})
    rows = "frames,time/frames_per_s,train/return_mean\n32,100.0,\n64,200.0,3.0\n96,1"
    write(tmp_path / "2", ["seed=2", "cell=gru"], {"config.yaml": "lr: 1.0\ntotal_frames: 128\n", "metrics.csv": rows})
    write(tmp_path / "3", ["seed=3", "cell=gru"], {})
    reader, writer = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        with display(tmp_path, 5):
            assert os.environ[SWITCH] == "off"
            time.sleep(0.6)
        stream.write("\x00")
        stream.flush()
        text = b""
        while not text.endswith(b"\x00"):
            text += os.read(reader, 1 << 16)
    os.close(reader)
    assert SWITCH not in os.environ
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\r", text.decode()).split("\r")
    shown = [line.strip() for line in lines]
    assert [line for line in shown if line.endswith("2 of 5 jobs ended · 1 failed · best return 12.5")]
    assert [line for line in shown if line.endswith("#2 seed=2 · 64/128 frames at 200/s · return 3.00 · 0:00:00 left")]
    assert [line for line in shown if line.endswith("#3 seed=3")]
