"""Everything around the training of a run: composing its configuration, starting or resuming it, recording it, and
opening it again.

The commands and the Python API share it. ``job``, ``resume`` and ``open_run`` import torch, so commands import these
modules late.
"""
