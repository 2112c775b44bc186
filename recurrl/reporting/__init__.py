"""The results of runs: tables, and a self-contained HTML page."""
