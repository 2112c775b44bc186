"""Files, signals, time limits, resources, and the directory of a run with its lock."""
