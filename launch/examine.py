"""All checks of cascade_jax.conformance on one checkpoint, a line each, and its loss mask in colours."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Int
from rich.console import Console
from rich.text import Text

from cascade_jax import conformance
from cascade_jax.checkpoint import is_hugging_face, load_model, read_config
from cascade_jax.config import ModelConfig
from cascade_jax.conformance import Example, Finding
from cascade_jax.data import tokenizer as tokenizers
from cascade_jax.data.chat import Chat
from cascade_jax.model import apply
from cascade_jax.model.convert.load import read_plan
from cascade_jax.model.convert.names import tensors

ROOM = 1.5  # of the bytes of the weights: what the checks need beside them
TRAINED, PROMPT = "bold green", "dim"  # the colours of the loss mask


def examine(path: Path) -> int:
    """Exit code: 0 where all is well, 1 where a line says what to mend, 2 where `path` is no checkpoint."""
    try:
        config = read_config(path)
    except (ValueError, OSError) as error:
        where = "" if str(path) in str(error) else f"{path}: "
        print(f"error: {where}{error}", file=sys.stderr)
        return 2
    console = Console(highlight=False, soft_wrap=True)
    count = sum(leaf.size for leaf in jax.tree.leaves(apply.abstract(config)))
    console.print(f"{path}: {count:,} parameters, layers {config.pattern}\n", markup=False)
    problems = 0
    for item in _checks(path, config, coloured=console.color_system is not None):
        console.print(_line(item) if isinstance(item, Finding) else item)
        problems += isinstance(item, Finding) and not item.ok
    console.print("\nall well" if not problems else f"\n{problems} to mend")
    return 1 if problems else 0


def _checks(path: Path, config: ModelConfig, *, coloured: bool) -> Iterator[Finding | Text]:
    """Findings as they come, the slow ones last; the loss mask between them."""
    chat, shown = None, None
    try:
        chat = Chat(tokenizers.load(path))
        shown = conformance.example(chat)
    except (ValueError, OSError) as error:
        yield Finding("tokenizer, template", False, str(error))
    if chat is not None and shown is not None:
        yield conformance.vocabulary(chat.tokenizer, config)
        yield conformance.template_file(chat.tokenizer)
        yield conformance.features(chat, shown)
        yield from (conformance.prefixes(chat, thinking=thinking) for thinking in (True, False))
        yield conformance.loss_mask(chat, shown)
        yield _picture(chat, shown, coloured=coloured)
        yield conformance.engine_stops(chat, shown)
        yield _file_stops(path, chat, shown)
    yield from conformance.by_mesh(config)
    yield conformance.cache_size(config)
    yield from weights(path, config, chat, shown, memory=free_memory())


def weights(
    path: Path, config: ModelConfig, chat: Chat | None, shown: Example | None, *, memory: int
) -> Iterator[Finding]:
    """What the weights show once they are loaded; where `memory` (bytes) cannot hold them, what their headers show."""
    need = ROOM * _loaded_bytes(path, config)
    if need > memory:
        sizes = f"{need / 2**30:.3g} GiB are needed and {memory / 2**30:.3g} GiB are free here"
        yield Finding("numbers", True, f"not looked at: {sizes}; run it on a larger machine")
        if is_hugging_face(path):
            yield _headers(path)
        return
    try:
        config, params, _ = load_model(path)
    except (ValueError, OSError) as error:
        yield Finding("weights", False, str(error))
        return
    yield (sound := conformance.finite(params))
    if (bias := conformance.router_bias(params)) is not None:
        yield bias
    if chat is not None and shown is not None:
        yield conformance.zero_embeddings(params, chat.tokenizer, conformance.written(chat, shown))
    if sound.ok:
        ids = _probe(config, shown)
        yield conformance.decode_path(config, params, ids)
        yield conformance.packing(config, params, ids)
        yield conformance.sampler_gap(config, params, ids)
        yield conformance.sampler_gap(config, params, ids, temperature=0.7, top_p=0.9)


def _file_stops(path: Path, chat: Chat, shown: Example) -> Finding:
    try:
        return conformance.file_stops(chat, shown, conformance.declared_stops(path))
    except ValueError as error:
        return Finding("stop ids of the files", False, str(error))


def _headers(path: Path) -> Finding:
    """Names, shapes and dtypes of the tensors, without reading them."""
    try:
        config, _ = read_plan(path)
    except ValueError as error:
        return Finding("tensors", False, str(error))
    return Finding("tensors", True, f"all {len(tensors(config)):,} that config.json asks for are there, in its shapes")


def _probe(config: ModelConfig, shown: Example | None) -> Int[np.ndarray, " N"]:
    """The conversation's ids, or random ones where there is no tokenizer that fits."""
    ids = np.zeros(0, np.int32) if shown is None else shown.rendered.ids
    known = ids[ids < config.vocab_size]
    return known if known.size else np.random.default_rng(0).integers(0, config.vocab_size, 256)


def _loaded_bytes(path: Path, config: ModelConfig) -> int:
    """What the weights take once they are loaded: theirs in the stored dtypes, ours in float32."""
    if is_hugging_face(path):
        return sum(file.stat().st_size for file in path.glob("*.safetensors"))
    return 4 * sum(leaf.size for leaf in jax.tree.leaves(apply.abstract(config)))


def free_memory() -> int:
    """Free bytes of the device that the weights go to, which for a CPU are those of the machine."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        return 1024 * int(re.search(r"MemAvailable:\s+(\d+)", meminfo.read_text())[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _line(finding: Finding) -> Text:
    line = Text(str(finding))
    line.stylize("green" if finding.ok else "bold red", 0, 8)
    return line


def _picture(chat: Chat, shown: Example, *, coloured: bool) -> Text:
    """The conversation with what is trained in another colour or, without colours, between marks."""
    before, after = ("", "") if coloured else ("«", "»")
    legend = [(f"{before}trained{after}", TRAINED), (" prompt", PROMPT), (" special token" * coloured, "reverse")]
    picture, open_mark = Text.assemble("\n", *legend, "\n"), False
    for span in conformance.spans(chat.tokenizer, shown.rendered):
        if span.trained != open_mark:
            picture.append(before if span.trained else after, TRAINED)
            open_mark = span.trained
        picture.append(span.text, f"{TRAINED if span.trained else PROMPT}{' reverse' if span.special else ''}")
    picture.append(after if open_mark else "", TRAINED)
    picture.rstrip()
    return picture.append("\n")
