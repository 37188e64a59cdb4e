"""Workloads W1 to W8, measured on a real Postgres: `python -m benchmarks [W1 W3 …] [--compare dbos] [--json FILE]`.

What they are and what was measured with them: `benchmarks/README.md`.
"""
