"""The console commands: they compose and check a configuration, run it, and report the result.

``train`` answers help, versions and mistyped commands; ``job`` imports torch, only when a run begins.
"""
