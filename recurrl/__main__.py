"""``python -m recurrl``: the same as ``recurrl-train``."""

from recurrl.cli.train import main

if __name__ == "__main__":
    main()
