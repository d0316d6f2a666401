"""The load generator behind `stoker bench` and the benchmarks: light, one event loop, no torch, no rich."""
