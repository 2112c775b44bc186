"""Measures: python scripts/benchmark.py --help."""

from recurrl.benchmark import main

if __name__ == "__main__":
    main()
