"""Runs ``recurrl-upload`` from a checkout."""

from recurrl.cli.upload import upload_main

if __name__ == "__main__":
    upload_main()
