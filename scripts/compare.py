"""Compares runs: python scripts/compare.py --help."""

from recurrl.cli.compare import compare_main

if __name__ == "__main__":
    compare_main()
