"""token_logprobs against the whole-array version, and a walk through its jaxpr that finds no (B, T, V) array."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from cascade_jax import logprob
from cascade_jax.config import ModelConfig
from cascade_jax.logprob import filtered_logits, target_logprobs, token_logprobs
from cascade_jax.model import apply

B, T, V = 3, 5, 23
CONFIG = ModelConfig(vocab_size=V, width=8, pattern="-", mlp_width=4, initializer_range=0.7)


def keep_by_definition(logits, temperature, top_p, top_k):
    """Which tokens may be drawn, for one row of float64 logits."""
    order = sorted(range(len(logits)), key=lambda v: (-logits[v], v))
    order = order[:top_k] if top_k else order
    probs = np.exp((logits[order] - logits[order[0]]) / (temperature or 1))
    probs /= probs.sum()
    count = next((n for n in range(1, len(order)) if probs[:n].sum() >= top_p), len(order)) if top_p < 1 else len(order)
    keep = np.zeros(len(logits), bool)
    keep[order[:count]] = True
    return keep


def logprobs_by_definition(logits, targets, temperature, top_p, top_k):
    logits = logits.astype(np.float64) / temperature
    out, entropy = np.empty(targets.shape), np.empty(targets.shape)
    for index in np.ndindex(targets.shape):
        row = logits[index]
        keep = keep_by_definition(row, 1.0, top_p, top_k)
        log_z = np.log(np.exp(row[keep]).sum())
        out[index] = row[targets[index]] - log_z if keep[targets[index]] else -np.inf
        probs = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        entropy[index] = -(probs * np.log(probs)).sum()
    return out, entropy


@functools.cache
def inputs():
    key = jax.random.key(0)
    params = apply.init(CONFIG, key)
    hidden = jax.random.normal(jax.random.fold_in(key, 1), (B, T, CONFIG.width))
    return params, hidden, jax.random.randint(jax.random.fold_in(key, 2), (B, T), 0, V)


SETTINGS = [
    (0.7, 0.9, 0),
    (1.3, 1.0, 4),
    (0.9, 0.8, 6),
    (1.0, 1.0, V + 5),
    (1.0, 1e-6, 0),
]


@pytest.mark.parametrize(("temperature", "top_p", "top_k"), SETTINGS)
def test_filter_keeps_what_the_definition_keeps(temperature, top_p, top_k):
    logits = np.random.default_rng(0).normal(size=(4, 6, V)).astype(np.float32)
    got = np.asarray(filtered_logits(jnp.asarray(logits), temperature=temperature, top_p=top_p, top_k=top_k))
    for index in np.ndindex(4, 6):
        keep = keep_by_definition(logits[index].astype(np.float64), temperature, top_p, top_k)
        np.testing.assert_array_equal(np.isfinite(got[index]), keep)
        np.testing.assert_allclose(got[index][keep], logits[index][keep] / temperature, rtol=1e-6)
    assert (got.argmax(-1) == logits.argmax(-1)).all()


def test_equal_logits_go_by_id():
    logits = jnp.array([1.0, 2.0, 2.0, 2.0, 0.0])
    kept = lambda **s: np.flatnonzero(np.isfinite(filtered_logits(logits, temperature=1.0, **s))).tolist()  # noqa: E731
    assert kept(top_p=1.0, top_k=2) == [1, 2]
    assert kept(top_p=1.0, top_k=1) == [1]
    assert kept(top_p=0.5, top_k=3) == [1, 2]
    assert kept(top_p=0.01, top_k=0) == [1]


def test_top_p_counts_the_mass_after_top_k():
    logits = jnp.log(jnp.array([0.4, 0.3, 0.2, 0.1]))
    kept = lambda **s: int(jnp.isfinite(filtered_logits(logits, temperature=1.0, **s)).sum())  # noqa: E731
    assert kept(top_p=0.55, top_k=0) == 2
    assert kept(top_p=0.55, top_k=2) == 1  # 0.4 / 0.7 = 0.57


def test_greedy_log_probs_are_those_of_the_whole_distribution():
    logits = jnp.array([3.0, 1.0, 2.0])
    np.testing.assert_array_equal(filtered_logits(logits, temperature=0.0, top_p=0.5, top_k=1), logits)


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k", "chunk"),
    [(1.0, 1.0, 0, 7), (0.7, 0.9, 0, 5), (1.3, 1.0, 4, 1), (0.9, 0.8, 6, None)],
)
def test_equals_the_whole_array_version(temperature, top_p, top_k, chunk):
    params, hidden, targets = inputs()
    settings = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    weights = jax.random.normal(jax.random.key(9), (2, B, T))

    def chunked(params, hidden):
        out = token_logprobs(CONFIG, params, hidden, targets, chunk=chunk, **settings)
        return sum((w * jnp.where(jnp.isfinite(x), x, 0)).sum() for w, x in zip(weights, out, strict=True)), out

    logits = np.asarray(apply.logits(CONFIG, params, hidden))
    keep = np.stack([[keep_by_definition(row.astype(np.float64), **settings) for row in rows] for rows in logits])

    def whole(params, hidden):
        scaled = apply.logits(CONFIG, params, hidden) / temperature
        logprobs = jax.nn.log_softmax(jnp.where(keep, scaled, -1e9))
        chosen = jnp.take_along_axis(logprobs, targets[..., None], axis=-1)[..., 0]
        everything = jax.nn.log_softmax(scaled)
        entropy = -(jnp.exp(everything) * everything).sum(-1)
        return (weights[0] * jnp.where(chosen > -1e8, chosen, 0)).sum() + (weights[1] * entropy).sum()

    (_, (logprobs, entropy)), gradient = jax.jit(jax.value_and_grad(chunked, argnums=(0, 1), has_aux=True))(
        params, hidden
    )
    want = logprobs_by_definition(logits, np.asarray(targets), **settings)
    assert logprobs.dtype == entropy.dtype == jnp.float32 and logprobs.shape == entropy.shape == (B, T)
    np.testing.assert_allclose(logprobs, want[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(entropy, want[1], rtol=1e-5, atol=1e-6)
    want_gradient = jax.jit(jax.grad(whole, argnums=(0, 1)))(params, hidden)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5), gradient, want_gradient)


def test_gradients_are_finite_where_the_target_is_cut_or_logits_are_extreme():
    logits = jnp.array([[1e4, -1e4, 0.0, -jnp.inf], [1.0, 2.0, 3.0, 4.0]])

    def total(logits):
        logprobs, entropy = target_logprobs(logits, jnp.array([1, 0]), top_p=0.9)
        return jnp.where(jnp.isfinite(logprobs), logprobs, 0).sum() + entropy.sum(), logprobs

    (value, logprobs), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(logits)
    assert np.isfinite(value) and np.isfinite(gradient).all() and (logprobs == -jnp.inf).all()


def sizes(jaxpr):
    """The shapes of all values that a jaxpr and the jaxprs inside it compute."""
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            yield variable.aval.shape
        for inner in jaxprs_in_params(equation.params):
            yield from sizes(inner)


def largest(tokens, vocabulary, **settings):
    """Elements of the largest array in the forward and backward pass, hidden states and weights (8 wide) aside."""
    config = ModelConfig(vocab_size=vocabulary, width=8, pattern="-", mlp_width=4)
    shapes = jax.eval_shape(lambda: (apply.init(config, jax.random.key(0)), jnp.zeros((4, tokens // 4, 8))))
    targets = jax.ShapeDtypeStruct((4, tokens // 4), jnp.int32)

    def loss(params, hidden, targets):
        logprobs, entropy = token_logprobs(config, params, hidden, targets, **settings)
        return logprobs.sum() + entropy.sum()

    jaxpr = jax.make_jaxpr(jax.value_and_grad(loss, argnums=(0, 1)))(*shapes, targets)
    return max(int(np.prod(shape)) for shape in sizes(jaxpr.jaxpr) if 8 not in shape)


@pytest.mark.parametrize("settings", [{}, {"top_p": 0.9, "temperature": 0.7}, {"top_k": 50}])
def test_no_array_over_all_tokens_and_the_vocabulary(settings):
    tokens, vocabulary = 4096, 8197
    assert tokens < largest(tokens, vocabulary, chunk=96, **settings) <= 96 * vocabulary
    assert tokens < largest(tokens, vocabulary, **settings) <= logprob.CHUNK_TOKENS * vocabulary < tokens * vocabulary


def test_what_fits_at_once_is_not_chunked():
    params, hidden, targets = inputs()
    text = str(jax.make_jaxpr(lambda p, h: token_logprobs(CONFIG, p, h, targets))(params, hidden))
    assert "scan" not in text and "while" not in text
