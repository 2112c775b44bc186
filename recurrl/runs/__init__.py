"""The life of a run around its training: composed and checked, begun or resumed, recorded, and opened again.

Commands and the Python API share it. ``job`` imports torch, only when a run begins.
"""
