"""Runs ``recurrl-report`` from a checkout."""

from recurrl.cli.compare import report_main

if __name__ == "__main__":
    report_main()
