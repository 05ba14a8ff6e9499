"""Kernels for the few operations that XLA does not do well by itself: arrays in, arrays out.

This package is a leaf. It imports nothing of cascade_jax, knows no config and no model, and can be carried to an
accelerator and tested alone. Each operation is one folder with one public function; see dispatch for which runs.
"""
