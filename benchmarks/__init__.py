"""Measurements: ratios within one run, since machines are noisy. `make bench` runs them all."""
