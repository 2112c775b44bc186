"""What runs need from the process and the machine: ranks, seeds, statistics over ranks, files, locks, signals, time
limits, compilation.
"""
