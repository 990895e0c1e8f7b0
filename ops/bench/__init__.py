"""Benchmarks: figures beside those of the peers, measured in one run. Nothing here passes or fails."""
