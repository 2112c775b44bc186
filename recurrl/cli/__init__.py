"""The console commands: they compose and check a configuration, run it, and report the result.

``train`` answers help, versions and mistyped commands by itself; torch is imported by ``job``, once a run is to begin.
"""
