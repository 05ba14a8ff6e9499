"""What test_eight_devices.py runs: shards of rows on 2, 4 and 8 devices against whole rows on one."""

import functools
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from cascade_jax.mesh import make_mesh
from cascade_jax.model.attention import attend
from cascade_jax.model.context import conv_halo, positions_parallel, ssd_parallel
from cascade_jax.model.ring import ring_attention
from cascade_jax.model.segments import segment_bounds
from pallas_kernels.attention import xla as attention_tiles
from pallas_kernels.ssd import causal_conv, ssd

H, K, h = 4, 2, 8
P, G, N, W = 3, 2, 5, 3
CHANNELS = 4
ROW = PartitionSpec(None, "context")
ONE = PartitionSpec()

# Runs of (segment, tokens), 48 in all. Shards are of 24, 12 or 6 tokens.
RUNS = [
    [(1, 48)],
    [(1, 24), (2, 12), (3, 12)],  # end at the edges
    [(1, 23), (2, 2), (3, 10), (4, 13)],  # and just beside them
    [(0, 7), (1, 20), (0, 5), (2, 10), (0, 6)],
    [(0, 48)],
    [(number, 2) for number in range(1, 25)],
    [(9, 17), (4, 19), (0, 1), (2, 11)],  # numbers in no order
]
SEGMENTS = np.asarray([np.repeat(*zip(*row, strict=True)) for row in RUNS], np.int32)
LIVE = SEGMENTS > 0
B, T = SEGMENTS.shape


def whole_attention(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
    places = jnp.broadcast_to(jnp.arange(q.shape[1]), segments.shape)
    keys, values = k.transpose(0, 2, 3, 1), v.swapaxes(1, 2)
    return attend(q, keys, values, places_BT=places, segments_BT=segments, key_segments_BC=segments)


def whole_mamba(x, dt, A, B, C, raw, weight, bias, segments):
    y, state, _ = ssd(x, dt, A, B, C, segments, chunk=4)
    return y, state, causal_conv(raw, weight, bias, segments)


def shard_mamba(x, dt, A, B, C, raw, weight, bias, segments):
    y, state = ssd_parallel(x, dt, A, B, C, segments, chunk=4)
    history, history_segments = conv_halo(raw, segments, W)
    conv = causal_conv(raw, weight, bias, segments, history_BWC=history, history_segments_BW=history_segments)
    return y, state, conv


def split(shard: Callable, inputs: tuple, outputs: PartitionSpec | tuple, *, context: int) -> Callable:
    mesh = make_mesh(context=context, devices=jax.devices()[:context])
    return jax.shard_map(shard, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False)


def split_attention(context: int) -> Callable:
    return split(ring_attention, (ROW,) * 4, ROW, context=context)


def split_mamba(context: int) -> Callable:
    return split(shard_mamba, (ROW, ROW, ONE, ROW, ROW, ROW, ONE, ONE, ROW), (ROW, ONE, ROW), context=context)


def with_gradients(function: Callable) -> Callable:
    """jit((inputs, segments, cotangents) -> (values, gradients))"""

    def run(inputs: tuple, segments: jax.Array, cotangents: object) -> tuple:
        values, back = jax.vjp(lambda *inputs: function(*inputs, segments), *inputs)
        return values, back(cotangents)

    return jax.jit(run)


@functools.cache
def compiled(split: Callable, context: int) -> jax.stages.Compiled:
    """For inputs of the size of SEGMENTS."""
    inputs, cotangents = attention_inputs() if split is split_attention else mamba_inputs()
    return with_gradients(split(context)).lower(inputs, SEGMENTS, cotangents).compile()


def attention_inputs(live: np.ndarray = LIVE) -> tuple:
    """What pads give is of no use, and not the same in both: it has no cotangent."""
    rng = np.random.default_rng(0)
    q, out = rng.standard_normal((2, *live.shape, H, h)).astype(np.float32)
    k, v = rng.standard_normal((2, *live.shape, K, h)).astype(np.float32)
    return (q, k, v), out * live[..., None, None]


def mamba_inputs(live: np.ndarray = LIVE) -> tuple:
    """As the mixer makes them: x, dt and what enters the convolution are 0 in pads."""
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, *live.shape, H, P))
    dt, A = 0.3 * rng.uniform(size=(*live.shape, H)), -rng.uniform(0.1, 4, H)
    Bs, Cs = rng.standard_normal((2, *live.shape, G, N))
    raw, v = rng.standard_normal((2, *live.shape, CHANNELS))
    x[~live], dt[~live], raw[~live] = 0, 0, 0
    weight, bias, state = rng.standard_normal((W + 1, CHANNELS)), rng.standard_normal(CHANNELS), (len(live), H, P, N)
    inputs, cotangents = (x, dt, A, Bs, Cs, raw, weight, bias), (y, rng.standard_normal(state), v)
    return jax.tree.map(lambda a: a.astype(np.float32), (inputs, cotangents))


def assert_close(got: object, want: object) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        other = np.asarray(other)
        np.testing.assert_allclose(np.asarray(one), other, atol=1e-5 * max(1, np.abs(other).max()))


def test_there_are_eight_devices() -> None:
    assert len(jax.devices()) == 8


@functools.cache
def whole_row_attention() -> tuple:
    inputs, cotangent = attention_inputs()
    return with_gradients(whole_attention)(inputs, SEGMENTS, cotangent)


@functools.cache
def whole_row_mamba() -> tuple:
    inputs, cotangents = mamba_inputs()
    return with_gradients(whole_mamba)(inputs, SEGMENTS, cotangents)


@pytest.mark.parametrize(("context", "tile"), [(2, 5), (4, 1024), (8, 2)])
def test_ring_attention_equals_attention_on_whole_rows(context, tile, monkeypatch):
    monkeypatch.setattr(attention_tiles, "TILE", tile)
    inputs, cotangent = attention_inputs()
    want, want_gradients = whole_row_attention()
    got, gradients = compiled(split_attention, context)(inputs, SEGMENTS, cotangent)
    assert_close(np.asarray(got)[LIVE], np.asarray(want)[LIVE])
    assert_close(gradients, want_gradients)
    assert not np.asarray(got)[~LIVE].any()


def test_ring_attention_in_bfloat16_errs_no_more_than_attention_on_whole_rows():
    exact = attention_inputs()[0]
    rough = tuple(jnp.asarray(a, jnp.bfloat16) for a in exact)
    plain = jax.jit(whole_attention)
    want = np.asarray(plain(*(a.astype(jnp.float32) for a in rough), SEGMENTS))[LIVE]
    whole = np.asarray(plain(*rough, SEGMENTS), np.float32)[LIVE]
    got = jax.jit(split_attention(4))(*rough, SEGMENTS)
    assert got.dtype == jnp.bfloat16
    error = np.abs(np.asarray(got, np.float32)[LIVE] - want)
    assert error.mean() <= 1.2 * np.abs(whole - want).mean()
    assert error.max() <= 1.5 * np.abs(whole - want).max()


@pytest.mark.parametrize("context", [2, 4, 8])
def test_state_and_convolution_pass_over_the_edges(context):
    inputs, cotangents = mamba_inputs()
    got = compiled(split_mamba, context)(inputs, SEGMENTS, cotangents)
    assert_close(got, whole_row_mamba())


@pytest.mark.parametrize("context", [2, 4, 8])
def test_positions_restart_in_each_segment_of_the_row(context):
    got = jax.jit(split(positions_parallel, (ROW,), ROW, context=context))(SEGMENTS)
    np.testing.assert_array_equal(got, np.arange(T) - segment_bounds(SEGMENTS)[0])


def test_a_changed_token_leaves_other_segments_as_they_were():
    """Their values, and the gradients of their inputs."""
    changed = (SEGMENTS == 2) | ((SEGMENTS == 0) & (np.arange(B) == 3)[:, None])  # and the pads of one row
    others = LIVE & ~changed

    def run(split: Callable, change: float) -> list[np.ndarray]:
        """What a split program gives for each token, with all that enters at `changed` tokens shifted."""
        inputs, cotangents = attention_inputs() if split is split_attention else mamba_inputs()
        shift = np.where(changed & (LIVE | (split is split_attention)), np.float32(change), 0)

        def shifted(a: np.ndarray) -> np.ndarray:
            return a + shift.reshape(B, T, *[1] * (a.ndim - 2)) if a.shape[:2] == (B, T) else a

        given = jax.tree.map(shifted, inputs), SEGMENTS, jax.tree.map(shifted, cotangents)
        return [np.asarray(a) for a in jax.tree.leaves(compiled(split, 4)(*given)) if a.shape[:2] == (B, T)]

    for split in (split_attention, split_mamba):
        for before, after in zip(run(split, 0.0), run(split, 1.0), strict=True):
            np.testing.assert_allclose(after[others], before[others], atol=1e-6)
            assert np.abs(after - before)[changed & LIVE].max() > 0.1


def test_short_messages_and_no_other_collectives():
    """From rank to rank, and one sum of the state at the end; those of Mamba as long for 480 tokens as for 48."""
    for split in (split_attention, split_mamba):
        text = compiled(split, 4).as_text()
        assert "collective-permute" in text
        assert not re.search("all-to-all|all-gather|reduce-scatter", text)

    def messages(tokens: int) -> list[str]:
        segments = np.ones((2, tokens), np.int32)
        inputs, cotangents = mamba_inputs(segments > 0)
        text = with_gradients(split_mamba(4)).lower(inputs, segments, cotangents).as_text()
        return re.findall(r"collective_permute.*\((tensor<\S+>)\)", text)

    assert len(messages(T)) > 10
    assert messages(T) == messages(10 * T)


def test_memory_of_a_rank_is_that_of_its_tokens(monkeypatch):
    monkeypatch.setattr(attention_tiles, "TILE", 32)

    def scratch(context: int, tokens: int) -> int:
        segments = np.ones((1, context * tokens), np.int32)
        inputs, cotangent = attention_inputs(segments > 0)
        program = with_gradients(split_attention(context)).lower(inputs, segments, cotangent).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert scratch(8, 1024) <= 4.2 * scratch(2, 256)


def test_a_shard_shorter_than_the_convolution_is_refused():
    inputs, _ = mamba_inputs(LIVE[:, :16])
    with pytest.raises(ValueError, match=r"shard of 2 tokens is shorter than the 3 .* fewer context shards"):
        jax.eval_shape(split_mamba(8), *inputs, SEGMENTS[:, :16])
