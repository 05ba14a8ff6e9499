"""Causal attention with grouped queries over packed documents, or over a cache."""

from pallas_kernels.attention.api import attention, attention_gradients

__all__ = ["attention", "attention_gradients"]
