"""Collectors step environments with a policy and yield rollouts ``[N, T]``, rows in time order.

Each of the package's choices of ``collector`` is a module with a factory ``make(options, spec)``.

Shape legend: N environments, T steps of a row.
"""
