"""Benchmarks: ratios within one run, never a timed test. `make bench`, or `python -m bench --help`."""
