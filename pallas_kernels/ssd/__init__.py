"""Mamba-2 without its weights: the chunked scan, and the short convolution beside it."""

from pallas_kernels.ssd.api import ssd, ssd_carried
from pallas_kernels.ssd.convolution import causal_conv

__all__ = ["causal_conv", "ssd", "ssd_carried"]
