"""The public function: checks, choice of implementation, gradients."""

from types import ModuleType
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.dispatch import Implementation, choose, wrong_platform
from pallas_kernels.grouped_matmul.plan import Plan, work_list

Activation = Literal["relu2"]


def grouped_matmul(
    x_MK: Float[Array, "M K"],
    weight_GKN: Float[Array, "G K N"],
    groups: Int[Array, " G"] | Plan,
    *,
    transposed: bool = False,
    activation: Activation | None = None,
    row_weight_M: Float[Array, " M"] | None = None,
    implementation: Implementation | None = None,
) -> Float[Array, "M N"]:
    """Rows sorted by group, each times its group's matrix. x's dtype out, products summed in float32.

    groups: how many rows each group has, or the plan that `work_list` made of that; make it once per layer. The rows
    behind the last group's come out as zeros. A group may have none, or all.
    transposed: the matrices are (G, N, K) and read transposed, without a copy.
    activation: "relu2" squares what is positive of the product, before it is rounded and written. Its gradient comes
    out of the result alone (the slope is twice its root), so nothing else is kept.
    row_weight_M: factor of every row of the result, float32, say the routing weight. Its gradient is <x, dy W^T>, so
    the result is not kept.
    implementation: None takes the first that supports the call.

    ValueError where shapes, dtypes or the named implementation do not fit. Products are those of MegaBlocks (arXiv
    2211.15841), over a list of visits instead of blocks.
    """
    plan = groups if isinstance(groups, Plan) else work_list(groups, rows=x_MK.shape[0])
    _check(x_MK, weight_GKN, plan, transposed, activation, row_weight_M)
    name = _choose(x_MK, weight_GKN, plan, implementation)
    return product(x_MK, weight_GKN, row_weight_M, plan, transposed, activation, _backend(name))


def weight_gradient(
    x_MK: Float[Array, "M K"],
    dy_MN: Float[Array, "M N"],
    groups: Int[Array, " G"] | Plan,
    dtype: jnp.dtype,
    *,
    implementation: Implementation | None = None,
) -> Float[Array, "G K N"]:
    """For every group the sum of x^T dy over its rows, summed in float32 and given in dtype; 0 without rows.

    What grouped_matmul's gradient by its matrices is made of. ValueError as there.
    """
    plan = groups if isinstance(groups, Plan) else work_list(groups, rows=x_MK.shape[0])
    matrices = jax.ShapeDtypeStruct((plan.groups, x_MK.shape[1], dy_MN.shape[1]), dtype)
    _check(x_MK, matrices, plan, False, None, None)
    if dy_MN.shape[0] != plan.rows:
        raise ValueError(f"grouped_matmul: {x_MK.shape[0]} rows of x and {dy_MN.shape[0]} of dy; give as many of both")
    return _backend(_choose(x_MK, matrices, plan, implementation)).weight_gradient(x_MK, dy_MN, plan, dtype)


def _choose(
    x: Array, weight: Array | jax.ShapeDtypeStruct, plan: Plan, implementation: Implementation | None
) -> Implementation:
    return choose(
        "grouped_matmul",
        implementation,
        {
            "pallas_tpu": lambda: wrong_platform("tpu") or _backend("pallas_tpu").obstacle(x, weight, plan),
            "pallas_gpu": lambda: wrong_platform("gpu") or _backend("pallas_gpu").obstacle(x, weight, plan),
            "xla": lambda: None,
            "reference": lambda: None,
        },
    )


def _check(
    x: Array, weight: Array, plan: Plan, transposed: bool, activation: str | None, row_weight: Array | None
) -> None:
    contracted = weight.shape[2 if transposed else 1]
    if x.shape[1] != contracted:
        raise ValueError(
            f"grouped_matmul: rows of width {x.shape[1]} do not fit matrices of {weight.shape[1:]}"
            f"{' read transposed' if transposed else ''}; the {contracted} has to be the rows' width"
        )
    if x.shape[0] != plan.rows or weight.shape[0] != plan.groups:
        raise ValueError(
            f"grouped_matmul: {x.shape[0]} rows and {weight.shape[0]} matrices, but the groups are "
            f"{plan.groups} of {plan.rows} rows"
        )
    if x.dtype not in (jnp.float32, jnp.bfloat16, jnp.float64):
        raise ValueError(f"grouped_matmul: rows of {x.dtype}; allowed are float32, bfloat16")
    if activation not in (None, "relu2"):
        raise ValueError(f"grouped_matmul: activation={activation!r} is not one of None, 'relu2'")
    if activation is not None and row_weight is not None:
        raise ValueError("grouped_matmul: an activation and a row_weight_M; give the weight to the second product")


def _backend(name: Implementation) -> ModuleType:
    """The module that has forward and weight_gradient. Imported here: a CPU never loads a kernel language."""
    if name == "pallas_tpu":
        from pallas_kernels.grouped_matmul import tpu as module
    elif name == "pallas_gpu":
        from pallas_kernels.grouped_matmul import gpu as module
    elif name == "xla":
        from pallas_kernels.grouped_matmul import xla as module
    else:
        from pallas_kernels.grouped_matmul import reference as module
    return module


def product(
    x: Array,
    weight: Array,
    row_weight: Array | None,
    plan: Plan,
    transposed: bool,
    activation: Activation | None,
    backend: ModuleType,
) -> Array:
    """The product and its gradients by a back-end's forward and weight_gradient."""

    @jax.custom_vjp
    def multiply(x: Array, weight: Array, row_weight: Array | None, plan: Plan) -> Array:
        return backend.forward(
            x, weight.astype(x.dtype), plan, transposed=transposed, activation=activation, row_weight_M=row_weight
        )

    def forward(x: Array, weight: Array, row_weight: Array | None, plan: Plan) -> tuple[Array, tuple]:
        y = multiply(x, weight, row_weight, plan)
        return y, (x, weight, row_weight, plan, y if activation else None)

    def backward(saved: tuple, dy: Array) -> tuple[Array, Array, Array | None, None]:
        x, weight, row_weight, plan, y = saved
        if y is not None:
            dy = (dy.astype(jnp.float32) * 2 * jnp.sqrt(y.astype(jnp.float32))).astype(dy.dtype)
        matrices = weight.astype(dy.dtype)
        dx = backend.forward(dy, matrices, plan, transposed=not transposed, activation=None, row_weight_M=None)
        d_row_weight = None
        if row_weight is not None:
            d_row_weight = jnp.einsum("mk,mk->m", x, dx, preferred_element_type=jnp.float32).astype(row_weight.dtype)
            dx, x = ((a * row_weight[:, None]).astype(a.dtype) for a in (dx, x))
        left, right = (dy, x) if transposed else (x, dy)
        return dx, backend.weight_gradient(left, right, plan, weight.dtype), d_row_weight, None

    multiply.defvjp(forward, backward)
    return multiply(x, weight, row_weight, plan)
