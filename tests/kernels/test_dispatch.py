"""Which implementation runs: what is named, what is preferred, what fits; and what has run is known."""

import jax.numpy as jnp
import pytest

from cascade_jax.config import ConfigError, KernelConfig, build
from pallas_kernels import dispatch
from pallas_kernels.dispatch import chosen, preferring
from pallas_kernels.grouped_matmul import grouped_matmul

X, W, SIZES = jnp.ones((8, 4)), jnp.ones((2, 4, 4)), jnp.asarray([5, 3])


def test_what_is_preferred_runs_or_says_why_not(monkeypatch):
    monkeypatch.setattr(dispatch, "_chosen", {})
    with preferring({"grouped_matmul": "reference"}):
        grouped_matmul(X, W, SIZES)
    assert chosen() == {"grouped_matmul": ["reference"]}
    with (
        preferring({"grouped_matmul": "pallas_tpu"}),
        pytest.raises(ValueError, match="runs on a tpu and this program is"),
    ):
        grouped_matmul(X, W, SIZES)
    with preferring({"grouped_matmul": "pallas_tpu"}):  # what a call names goes first
        grouped_matmul(X, W, SIZES, implementation="xla")
    grouped_matmul(X, W, SIZES)
    assert chosen() == {"grouped_matmul": ["reference", "xla"]}


def test_a_config_names_kernels():
    assert build(KernelConfig, {"ssd": "xla"}).named == {"ssd": "xla"}
    with pytest.raises(ConfigError, match="cudnn"):
        build(KernelConfig, {"ssd": "cudnn"})
    assert build(KernelConfig, {"attention": "cudnn"}).named == {"attention": "cudnn"}
