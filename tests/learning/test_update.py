"""The update: any split gives the same step, bad gradients change nothing, frozen leaves rest, routers balance."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cascade_jax.config import OptimizerConfig
from cascade_jax.loss import grpo_loss
from cascade_jax.offload import to_host
from cascade_jax.optimizer import make_optimizer
from cascade_jax.types import TrainState, Weighted
from cascade_jax.update import make_update

ROWS, LENGTH, WIDTH, VOCABULARY = 12, 5, 3, 4
CONFIG = OptimizerConfig(learning_rate=0.1, clip_norm=1.0, weight_decay=0.1)


def params():
    rng = np.random.default_rng(0)
    return {
        "head": jnp.asarray(rng.normal(size=(WIDTH, VOCABULARY)), jnp.float32),
        "norm": jnp.ones(WIDTH, jnp.float32),
    }


def batch(seed=1):
    """Rows of very different length, some dead, in such an order that micro-batches differ much."""
    rng = np.random.default_rng(seed)
    lengths = np.array([5, 0, 1, 5, 0, 0, 2, 5, 1, 0, 5, 3])
    return {
        "x": jnp.asarray(rng.normal(size=(ROWS, LENGTH, WIDTH)), jnp.float32),
        "targets": jnp.asarray(rng.integers(0, VOCABULARY, size=(ROWS, LENGTH))),
        "advantages": jnp.asarray(rng.normal(size=(ROWS, LENGTH)), jnp.float32),
        "sampler": jnp.asarray(-rng.random((ROWS, LENGTH)) - 1, jnp.float32),
        "mask": jnp.asarray(np.arange(LENGTH) < lengths[:, None]),
    }


def policy_loss(params, batch, aggregate="token"):
    logits = (batch["x"] * params["norm"]) @ params["head"]
    logprobs = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["targets"][..., None], -1)[..., 0]
    return grpo_loss(
        logprobs, advantages_BT=batch["advantages"], mask_BT=batch["mask"], sampler_logprobs_BT=batch["sampler"],
        band=(0.5, 2.0), aggregate=aggregate,
    )  # fmt: skip


def policy_loss_by_sample(params, batch):
    return policy_loss(params, batch, aggregate="sample")


def two_terms(params, batch):
    """The policy loss plus a term over rows, whose weight is another one and differs between micro-batches."""
    policy, metrics = policy_loss(params, batch)
    live = batch["mask"].any(axis=1)
    squares = ((batch["x"].mean(axis=1) @ params["head"]) ** 2).sum(axis=-1)
    return (policy, Weighted(jnp.where(live, squares, 0).sum(), live.sum(dtype=jnp.float32))), metrics


def fresh(config=CONFIG, start=None):
    optimizer = make_optimizer(config, total_steps=10)
    start = params() if start is None else start
    return optimizer, TrainState(start, optimizer.init(start), jnp.zeros((), jnp.int32))


@functools.cache
def steps(loss, micro_batches):
    """(state, metrics) after two steps."""
    optimizer, state = fresh()
    update = make_update(CONFIG, loss, optimizer)
    for seed in (0, 1):
        state, metrics = update(state, batch(seed), micro_batches=micro_batches)
    return state, metrics


@pytest.mark.parametrize(
    ("loss", "micro_batches"),
    [(policy_loss, 2), (policy_loss, 12), (policy_loss_by_sample, 3), (two_terms, 2), (two_terms, 6)],
)
def test_any_split_gives_the_same_step(loss, micro_batches):
    whole, split = steps(loss, 1), steps(loss, micro_batches)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), whole, split)


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_the_step_is_that_of_the_means_gradient(micro_batches):
    def objective(p):
        (policy, squares), _ = two_terms(p, batch())
        return policy.total / policy.weight + squares.total / squares.weight

    optimizer, state = fresh()
    value, gradient = jax.value_and_grad(objective)(params())
    changes, _ = optimizer.update(gradient, state.optimizer_state, state.params)
    want = optax.apply_updates(params(), changes)
    got, metrics = make_update(CONFIG, two_terms, optimizer)(state, batch(), micro_batches=micro_batches)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got.params, want)
    np.testing.assert_allclose(metrics["loss"].mean, value, rtol=1e-5)
    np.testing.assert_allclose(metrics["grad_norm"].mean, optax.tree.norm(gradient), rtol=1e-5)
    assert metrics["nonfinite_steps"] == (0, 1) and got.step == 1


def test_one_term_keeps_its_weight_in_the_loss_metric():
    _, metrics = steps(policy_loss, 2)
    assert metrics["loss"].weight == batch()["mask"].sum()


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_gradient_that_is_not_finite_leaves_the_state(micro_batches):
    optimizer, state = fresh()
    update = make_update(CONFIG, policy_loss, optimizer)
    state, _ = update(state, batch(), micro_batches=micro_batches)
    before = jax.tree.map(np.array, state)
    for count, bad in enumerate((jnp.nan, jnp.inf), 1):
        broken = batch() | {"x": batch()["x"].at[3, 0].set(bad)}
        state, metrics = update(state, broken, micro_batches=micro_batches)
        kept = (state.params, state.optimizer_state), (before.params, before.optimizer_state)
        jax.tree.map(np.testing.assert_array_equal, *kept)
        assert metrics["nonfinite_steps"] == (1, 1) and state.step == before.step + count
    state, metrics = update(state, batch(), micro_batches=micro_batches)
    assert metrics["nonfinite_steps"] == (0, 1) and (state.params["head"] != before.params["head"]).any()


def test_a_batch_without_live_tokens_moves_nothing_but_decay():
    optimizer, state = fresh(OptimizerConfig(learning_rate=0.1))
    dead = batch() | {"mask": jnp.zeros((ROWS, LENGTH), bool)}
    state, metrics = make_update(CONFIG, policy_loss, optimizer)(state, dead, micro_batches=2)
    jax.tree.map(np.testing.assert_array_equal, state.params, params())
    assert metrics["grad_norm"].mean == 0 and metrics["loss"].mean == 0


def test_frozen_leaves_never_move_and_take_no_part_in_the_norm():
    optimizer, state = fresh()
    update = make_update(CONFIG, policy_loss, optimizer, frozen=lambda path: path == "head")
    state, metrics = update(state, batch())
    gradient = jax.grad(lambda p: policy_loss(p, batch())[0].mean)(params())
    np.testing.assert_allclose(metrics["grad_norm"].mean, jnp.linalg.norm(gradient["norm"]), rtol=1e-5)
    np.testing.assert_array_equal(state.params["head"], params()["head"])
    assert (state.params["norm"] != 1).all()


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_what_is_frozen_takes_neither_state_nor_gradient(micro_batches):
    """Measured: beside the arguments, the compiled step needs less than the one frozen matrix takes."""
    start = {"big": jnp.ones((512, 512)), "small": jnp.ones((512, 2))}

    def loss(p, batch):
        out = batch["x"] @ p["big"] @ p["small"]
        return Weighted((out**2).sum(), jnp.float32(out.size)), {}

    def needs(frozen):
        optimizer = make_optimizer(CONFIG, total_steps=1, frozen=frozen)
        state = TrainState(start, optimizer.init(start), jnp.zeros((), jnp.int32))
        update = make_update(CONFIG, loss, optimizer, frozen=frozen)
        compiled = update.lower(state, {"x": jnp.ones((4, 512))}, micro_batches=micro_batches).compile()
        return compiled.memory_analysis().temp_size_in_bytes, sum(x.nbytes for x in jax.tree.leaves(state))

    size = start["big"].nbytes
    temporary, held = needs(lambda path: path == "big")
    assert temporary < size / 2 and held < 1.1 * size
    temporary, held = needs(None)
    assert temporary >= size and held >= 3 * size


def test_rows_must_divide():
    optimizer, state = fresh()
    with pytest.raises(ValueError, match="12 rows do not divide into micro_batches=5"):
        make_update(CONFIG, policy_loss, optimizer)(state, batch(), micro_batches=5)


def test_the_state_is_donated():
    optimizer, state = fresh()
    make_update(CONFIG, policy_loss, optimizer)(state, batch())
    assert state.params["head"].is_deleted()


def routed():
    """Params of a network with MoE layers 2 and 10 (their order as text is another), and a loss that counts experts."""
    layers = {
        name: {"mixer": {"router": jnp.ones((2, 3)), "router_bias": jnp.zeros(3), "up": jnp.ones((2, 2))}}
        for name in ("10", "2")
    }

    def loss(params, batch):
        total = sum((leaf**2).sum() for leaf in jax.tree.leaves(params))
        counts = batch["counts"].sum(axis=0)
        return Weighted(total * batch["counts"].shape[0], jnp.float32(batch["counts"].shape[0])), {
            "expert_counts": Weighted(counts, jnp.ones(()))
        }

    return {"layers": layers}, loss


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_correction_bias_follows_the_load_of_the_whole_batch(micro_batches):
    start, loss = routed()
    counts = jnp.array([[[4, 0, 2], [1, 1, 1]], [[0, 4, 2], [9, 0, 0]]])  # (rows, layers, E)
    config = OptimizerConfig(learning_rate=0.1, router_bias_rate=0.25, weight_decay=0.5)
    optimizer, state = fresh(config, start)
    state, metrics = make_update(config, loss, optimizer)(state, {"counts": counts}, micro_batches=micro_batches)
    mixers = {name: layer["mixer"] for name, layer in state.params["layers"].items()}
    np.testing.assert_array_equal(mixers["2"]["router_bias"], [0, 0, 0])  # 4, 4, 4
    np.testing.assert_array_equal(mixers["10"]["router_bias"], [-0.25, 0.25, 0.25])  # 10, 1, 1
    assert (mixers["2"]["router"] != 1).all()
    assert "expert_counts" not in metrics


def test_without_a_rate_the_bias_rests_and_with_freeze_the_router_too():
    start, loss = routed()
    config = OptimizerConfig(learning_rate=0.1, weight_decay=0.5, freeze_router=True)
    start["layers"]["2"]["mixer"]["router_bias"] += 1.0  # the loss has a gradient there; the optimizer must not follow
    bias = np.array(start["layers"]["2"]["mixer"]["router_bias"])
    optimizer, state = fresh(config, start)
    state, _ = make_update(config, loss, optimizer)(state, {"counts": jnp.array([[[4, 0, 2], [1, 1, 1]]])})
    mixer = state.params["layers"]["2"]["mixer"]
    np.testing.assert_array_equal(mixer["router_bias"], bias)
    assert (mixer["router"] == 1).all() and (mixer["up"] != 1).all()


def test_a_frozen_correction_bias_rests():
    start, loss = routed()
    config = OptimizerConfig(learning_rate=0.1, router_bias_rate=0.25)
    optimizer, state = fresh(config, start)
    update = make_update(config, loss, optimizer, frozen=lambda path: path.startswith("layers/2/"))
    state, _ = update(state, {"counts": jnp.array([[[4, 0, 2], [0, 1, 2]]])})
    np.testing.assert_array_equal(state.params["layers"]["2"]["mixer"]["router_bias"], [0, 0, 0])
    np.testing.assert_array_equal(state.params["layers"]["10"]["mixer"]["router_bias"], [0.25, 0, -0.25])


def test_a_bad_gradient_leaves_the_correction_bias_too():
    start, _ = routed()
    config = OptimizerConfig(learning_rate=0.1, router_bias_rate=0.25)

    def loss(params, batch):
        total = jnp.nan * params["layers"]["2"]["mixer"]["up"].sum()
        return Weighted(total, jnp.ones(())), {"expert_counts": Weighted(batch["counts"].sum(axis=0), jnp.ones(()))}

    optimizer, state = fresh(config, start)
    state, metrics = make_update(config, loss, optimizer)(state, {"counts": jnp.array([[[4, 0, 2], [1, 0, 1]]])})
    assert metrics["nonfinite_steps"].total == 1
    assert all((layer["mixer"]["router_bias"] == 0).all() for layer in state.params["layers"].values())


def test_moments_in_the_memory_of_the_host_change_nothing():
    """Two steps with the same bits; between them the moments lie with the host, the counters with the device."""

    def loss(params, batch):
        return Weighted(((batch @ params["w"]) ** 2).sum(), jnp.float32(batch.shape[0])), {}

    batch = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    states = {}
    for offload in (False, True):
        config = OptimizerConfig(learning_rate=0.1, offload=offload)
        optimizer = make_optimizer(config, total_steps=3)
        update = make_update(config, loss, optimizer)
        params = {"w": jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)}
        moments = optimizer.init(params)
        state = TrainState(params, to_host(moments) if offload else moments, jnp.zeros((), jnp.int32))
        for _ in range(2):
            state, _ = update(state, batch)
        states[offload] = state
    kinds = {leaf.sharding.memory_kind for leaf in jax.tree.leaves(states[True].optimizer_state) if leaf.ndim}
    assert kinds == {"pinned_host"}
    jax.tree.map(np.testing.assert_array_equal, states[False], states[True])
