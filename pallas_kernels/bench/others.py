"""What other libraries do for the same calls, where they are installed and run on the device that is there."""

import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pallas_kernels.dispatch import target

FORWARD_ALONE = ("torch._grouped_mm", "tokamax")  # their gradients are measured as passes of their own, or not at all


def grouped_matmul() -> dict[str, Callable[..., Any]]:
    """x, matrices, group sizes, dy -> (M, N). "dense" is one product of the same FLOPs."""
    ways: dict[str, Callable[..., Any]] = {
        "lax.ragged_dot": lambda x, w, sizes, dy: jax.lax.ragged_dot(x, w, sizes),
        "dense": lambda x, w, sizes, dy: _dense(x, w[0]),
    }
    if target().platform == "tpu":
        from jax.experimental.pallas.ops.tpu import megablox

        ways["megablox"] = lambda x, w, sizes, dy: megablox.gmm(x, w, sizes, x.dtype, (512, 1024, 1024))
    if target().platform == "gpu" and _torch() is not None:
        ways["torch._grouped_mm"] = lambda x, w, sizes, dy: _torch()._grouped_mm(x, w, offs=_offsets(sizes))
    if target().platform != "cpu" and importlib.util.find_spec("tokamax") is not None:
        import tokamax

        ways["tokamax"] = lambda x, w, sizes, dy: tokamax.ragged_dot(x, w, sizes)
    return ways


def input_gradient() -> dict[str, Callable[..., Any]]:
    """x, matrices, group sizes, dy -> (M, K)."""
    ways: dict[str, Callable[..., Any]] = {
        "lax.ragged_dot": lambda x, w, sizes, dy: jax.lax.ragged_dot(dy, w.swapaxes(1, 2), sizes),
        "dense": lambda x, w, sizes, dy: _dense(dy, w[0].T),
    }
    if target().platform == "gpu" and _torch() is not None:
        ways["torch._grouped_mm"] = lambda x, w, sizes, dy: _torch()._grouped_mm(
            dy, w.transpose(1, 2), offs=_offsets(sizes)
        )
    return ways


def weight_gradient() -> dict[str, Callable[..., Any]]:
    """x, matrices, group sizes, dy -> (G, K, N)."""
    ways: dict[str, Callable[..., Any]] = {"dense": lambda x, w, sizes, dy: _dense(x.T, dy)}
    if target().platform == "gpu" and _torch() is not None:
        ways["torch._grouped_mm"] = lambda x, w, sizes, dy: _torch()._grouped_mm(x.T, dy, offs=_offsets(sizes))
    return ways


def _dense(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision="highest" if a.dtype == jnp.float32 else None)


def materialised_logprob(
    hidden_TD: Float[Array, "T D"], head_DV: Float[Array, "D V"], targets_T: Int[Array, " T"]
) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    """Log-prob of the targets and entropy out of a (T, V) array in float32."""
    logits = jnp.matmul(hidden_TD, head_DV, precision="highest", preferred_element_type=jnp.float32)
    log_p = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(log_p, targets_T[:, None], axis=1)[:, 0], -(jnp.exp(log_p) * log_p).sum(1)


def attention(small: bool) -> dict[str, Callable[..., Any]]:
    """q, k, v, segments -> (B, T, H, D). The whole array of scores fits at small shapes alone."""

    def materialised(q: Array, k: Array, v: Array, segments: Array) -> Array:
        same = (segments[:, :, None] == segments[:, None]) & jnp.tri(q.shape[1], dtype=bool)
        return jax.nn.dot_product_attention(q, k, v, mask=same[:, None])

    ways: dict[str, Callable[..., Any]] = {"jax.nn": materialised} if small else {}
    if target().platform == "tpu":
        ways["splash"] = _splash
    return ways


def _splash(q: Array, k: Array, v: Array, segments: Array) -> Array:
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    T, H = q.shape[1:3]
    mask = splash.MultiHeadMask([splash.CausalMask((T, T)) for _ in range(H)])
    kernel = splash.make_splash_mha(mask, head_shards=1, q_seq_shards=1)
    repeat = H // k.shape[2]

    def one(q: Array, k: Array, v: Array, ids: Array) -> Array:
        k, v = (jnp.repeat(a.swapaxes(0, 1), repeat, axis=0) for a in (k, v))
        return kernel(q.swapaxes(0, 1) * q.shape[-1] ** -0.5, k, v, splash.SegmentIds(ids, ids)).swapaxes(0, 1)

    return jax.vmap(one)(q, k, v, segments)


def _torch() -> Any | None:
    """PyTorch with a GPU of its own, or None."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch if torch.cuda.is_available() and hasattr(torch, "_grouped_mm") else None


def _offsets(sizes: Any) -> Any:
    return sizes.cumsum(0).int()


def for_torch(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arrays as PyTorch's, on its device."""
    torch = _torch()

    def moved(a: Array) -> Any:
        wide = torch.from_numpy(np.array(a, np.float32 if a.dtype == jnp.bfloat16 else a.dtype)).cuda()
        return wide.bfloat16() if a.dtype == jnp.bfloat16 else wide

    return tuple(map(moved, arguments))
