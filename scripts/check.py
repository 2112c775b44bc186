"""Checks that learning would see what the rollout saw, and trains nothing: python scripts/check.py --help."""

from recurrl.cli.check import check_main

if __name__ == "__main__":
    check_main()
