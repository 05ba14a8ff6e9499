"""Rows sorted by group, each times its group's matrix (the products of a mixture of experts)."""

from pallas_kernels.grouped_matmul.api import grouped_matmul, weight_gradient
from pallas_kernels.grouped_matmul.plan import Plan, padded_width, work_list

__all__ = ["Plan", "grouped_matmul", "padded_width", "weight_gradient", "work_list"]
