"""Benchmarks and their statistics: what a checkpoint is worth outside of its own training."""
