"""The console commands: they compose and check a configuration, have it done, and report what came of it."""

from recurrl.cli.check import check_main
from recurrl.cli.evaluate import evaluate_main
from recurrl.cli.train import main

__all__ = ["check_main", "evaluate_main", "main"]
