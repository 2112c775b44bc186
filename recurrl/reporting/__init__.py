"""A self-contained HTML page about runs."""
