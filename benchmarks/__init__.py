"""Benchmarks: one module per subcommand, with ``add_arguments(parser)`` and ``run(arguments)``.

python scripts/benchmark.py layer --help
"""
