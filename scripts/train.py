"""Trains a policy: python scripts/train.py --help."""

from recurrl.cli.train import main

if __name__ == "__main__":
    main()
