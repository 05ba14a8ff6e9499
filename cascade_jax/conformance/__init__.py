"""Whether a checkpoint, its tokenizer and its template do what training relies on: pure functions that give findings.

    for finding in [finite(params), decode_path(config, params, ids), *by_mesh(config)]: print(finding)

`python -m launch.doctor CHECKPOINT` runs all of them.
"""

from cascade_jax.conformance.finding import Finding
from cascade_jax.conformance.memory import by_mesh, cache_size
from cascade_jax.conformance.numerics import decode_path, packing, sampler_gap
from cascade_jax.conformance.stops import declared_stops, engine_stops, file_stops, vocabulary
from cascade_jax.conformance.template import (
    Example,
    example,
    features,
    loss_mask,
    prefixes,
    spans,
    template_file,
    written,
)
from cascade_jax.conformance.weights import finite, router_bias, zero_embeddings

__all__ = [
    "Example",
    "Finding",
    "by_mesh",
    "cache_size",
    "declared_stops",
    "decode_path",
    "engine_stops",
    "example",
    "features",
    "file_stops",
    "finite",
    "loss_mask",
    "packing",
    "prefixes",
    "router_bias",
    "sampler_gap",
    "spans",
    "template_file",
    "vocabulary",
    "written",
    "zero_embeddings",
]
