"""Plays deterministic episodes with the policy of a run: python scripts/evaluate.py --help."""

from recurrl.cli.evaluate import evaluate_main

if __name__ == "__main__":
    evaluate_main()
