"""The public functions of attention; what is given is checked here, and nowhere below."""

import functools
import importlib
from types import ModuleType
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.attention import reference
from pallas_kernels.attention.visibility import Visibility
from pallas_kernels.dispatch import choose, wrong_platform

Implementation = Literal["pallas_tpu", "pallas_gpu", "cudnn", "xla", "reference"]


def attention(
    q_BTHD: Float[Array, "B T H D"],
    k_BSKD: Float[Array, "B S K D"],
    v_BSKD: Float[Array, "B S K D"],
    *,
    query_segments_BT: Int[Array, "B T"] | None = None,
    key_segments_BS: Int[Array, "B S"] | None = None,
    query_positions_BT: Int[Array, "B T"] | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    implementation: Implementation | None = None,
) -> Float[Array, "B T H D"] | tuple[Float[Array, "B T H D"], Float[Array, "B T H"]]:
    """Causal softmax attention with grouped queries; out in q's dtype.

    Query head i reads kv head i // (H / K). The query at place p of segment g sees the keys 0..p of segment g. Segment
    0 is padding: there a query sees nothing, gives 0, and its log-sum-exp is -1e30. Without segments all is one.
    Places count along S and default to 0..T-1, which is training on packed rows. Prefill and decoding over a cache
    give the lengths so far + 0..T-1. A ring gives its place minus that of the visiting keys, negative where they
    come later. Keys beyond a place are never used, so a cache may hold anything finite there.

    return_lse: also log sum exp(scale q k) of each query, natural and float32. Parts of a row over disjoint keys have
    the sum of their outputs weighted by softmax of these, and gradients pass through both.

    FlashAttention-2 (Dao 2023, arXiv 2307.08691). "pallas_tpu" and "pallas_gpu" skip tiles in which no query sees a
    key; "cudnn" needs bfloat16 or float16, no lse, and applies segments as a mask. ValueError for odd shapes.
    """
    B, T, H, D = q_BTHD.shape
    S, K = k_BSKD.shape[1:3]
    if k_BSKD.shape != (B, S, K, D) or v_BSKD.shape != (B, S, K, D) or H % K:
        raise ValueError(
            f"attention: q {q_BTHD.shape}, k {k_BSKD.shape}, v {v_BSKD.shape} are not (B, T, H, D) and twice "
            "(B, S, K, D) with H a multiple of K"
        )
    if (query_segments_BT is None) != (key_segments_BS is None):
        raise ValueError("attention: give both query_segments_BT and key_segments_BS, or neither")
    if query_positions_BT is None:
        query_positions_BT = jnp.broadcast_to(jnp.arange(T), (B, T))
    if query_segments_BT is None:
        query_segments_BT, key_segments_BS = jnp.ones((B, T), jnp.int32), jnp.ones((B, S), jnp.int32)
    seen = Visibility(
        *(a.astype(jnp.int32) for a in (query_positions_BT, query_segments_BT, key_segments_BS)),
    )
    scale = D**-0.5 if scale is None else scale
    name = _choose(q_BTHD, k_BSKD, implementation, lse=return_lse)
    if name == "cudnn":
        return _backend(name).forward(q_BTHD, k_BSKD, v_BSKD, seen, scale)
    run = reference.forward if name == "reference" else functools.partial(_attention, name)
    out, lse = run(q_BTHD, k_BSKD, v_BSKD, seen, scale)
    return (out, lse) if return_lse else out


def attention_gradients(
    q_BTHD: Float[Array, "B T H D"],
    k_BSKD: Float[Array, "B S K D"],
    v_BSKD: Float[Array, "B S K D"],
    d_out_BTHD: Float[Array, "B T H D"],
    lse_BTH: Float[Array, "B T H"],
    slope_BTH: Float[Array, "B T H"],
    *,
    query_segments_BT: Int[Array, "B T"],
    key_segments_BS: Int[Array, "B S"],
    query_positions_BT: Int[Array, "B T"],
    scale: float | None = None,
    implementation: Implementation | None = None,
) -> tuple[Float[Array, "B T H D"], Float[Array, "B S K D"], Float[Array, "B S K D"]]:
    """What these keys add to dq, and dk and dv of them, float32: the backward pass of one block of a ring.

    lse and slope = sum(d_out out, axis=-1) are those of the whole row, over all blocks.
    """
    seen = Visibility(query_positions_BT, query_segments_BT, key_segments_BS)
    scale = q_BTHD.shape[-1] ** -0.5 if scale is None else scale
    name = _choose(q_BTHD, k_BSKD, implementation, lse=True)
    return _backend(name).backward(
        q_BTHD, k_BSKD, v_BSKD, d_out_BTHD, lse_BTH, slope_BTH, seen, scale, dtype=jnp.float32
    )


def _choose(q: Array, k: Array, implementation: Implementation | None, *, lse: bool) -> str:
    D = q.shape[-1]

    def cudnn() -> str | None:
        if lse:
            return "it returns no log-sum-exp"
        if q.dtype not in (jnp.bfloat16, jnp.float16) or q.shape[1] != k.shape[1]:
            return f"it takes bfloat16 or float16 and as many queries as keys, not {q.dtype}, {q.shape}, {k.shape}"
        return wrong_platform("gpu")

    def tpu() -> str | None:
        return wrong_platform("tpu") or (f"heads of {D} are not a multiple of 128" if D % 128 else None)

    def gpu() -> str | None:
        fits = D in (32, 64, 128)
        return wrong_platform("gpu") or (None if fits else f"heads of {D} are not 32, 64 or 128 wide")

    obstacles = {"pallas_tpu": tpu, "pallas_gpu": gpu, "cudnn": cudnn, "xla": lambda: None, "reference": lambda: None}
    return choose("attention", implementation, obstacles)


def _backend(name: str) -> ModuleType:
    """Imported here, so that a machine without the back-end never touches it."""
    module = {"pallas_tpu": "tpu", "pallas_gpu": "gpu", "cudnn": "cudnn", "xla": "xla"}[name]
    return importlib.import_module(f"pallas_kernels.attention.{module}")


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 5))
def _attention(
    name: str, q: Array, k: Array, v: Array, seen: Visibility, scale: float
) -> tuple[Float[Array, "B T H D"], Float[Array, "B T H"]]:
    return _backend(name).forward(q, k, v, seen, scale)


def _forward(name: str, q: Array, k: Array, v: Array, seen: Visibility, scale: float) -> tuple[tuple, tuple]:
    out, lse = _backend(name).forward(q, k, v, seen, scale)
    return (out, lse), (q, k, v, seen, out, lse)


def _backward(name: str, scale: float, saved: tuple, gradients: tuple[Array, Array]) -> tuple:
    q, k, v, seen, out, lse = saved
    d_out, d_lse = gradients
    slope = (d_out.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1) - d_lse
    return *_backend(name).backward(q, k, v, d_out, lse, slope, seen, scale, dtype=q.dtype), None


_attention.defvjp(_forward, _backward)
