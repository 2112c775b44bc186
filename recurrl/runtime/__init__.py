"""What a run needs of its machine: files, signals, time limits, a lock on its directory."""
