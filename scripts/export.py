"""Writes the policy of a run as ONNX and torch.export files: python scripts/export.py --help."""

from recurrl.cli.export import export_main

if __name__ == "__main__":
    export_main()
