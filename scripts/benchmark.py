"""Runs the benchmarks: python scripts/benchmark.py --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.main import main

if __name__ == "__main__":
    main()
