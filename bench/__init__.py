"""Benchmarks: Tidemark and its peers measured in one run, as ratios (bench/README.md)."""
