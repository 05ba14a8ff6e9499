"""The checkpoint under test: a Hugging Face folder, a checkpoint of ours, the stage of a run, or a GGUF file."""

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from cascade_jax.checkpoint import load_model
from cascade_jax.config import ModelConfig
from cascade_jax.data import tokenizer as tokenizers
from cascade_jax.data.chat import Chat
from cascade_jax.model import apply
from cascade_jax.model.convert.gguf import load_gguf
from cascade_jax.rollout.engine import LocalEngine
from cascade_jax.types import Params

BUCKETS = tuple(2**n for n in range(6, 21))  # prompt lengths up to 1,048,576; a program is compiled when first needed
_HASHED = 64  # values of a weight


@dataclass(frozen=True)
class Policy:
    config: ModelConfig
    params: Params
    chat: Chat

    def engine(self, *, batch: int) -> LocalEngine:
        """batch: the most samples decoded at a time."""
        return LocalEngine(self.config, self.params, stop_ids=self.chat.stop_ids, buckets=BUCKETS, batch=batch)

    def fingerprint(self) -> str:
        """Tells weights apart that an update has changed: a hash of the first values of each."""
        first = [leaf[(0,) * (leaf.ndim - 1)][:_HASHED] for leaf in jax.tree.leaves(self.params)]
        digest = hashlib.sha256()
        for values in jax.device_get(first):
            digest.update(np.asarray(values, np.float32).tobytes())
        return digest.hexdigest()[:16]

    def check_room(self, samples: int, tokens: int, free: int) -> None:
        """ValueError where the caches of so many samples of so many tokens exceed the free bytes."""
        cache = jax.eval_shape(lambda: apply.empty_cache(self.config, samples, tokens))
        need = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))
        if need > free:
            raise ValueError(
                f"the caches of {samples} samples of up to {tokens:,} tokens take {need / 2**30:,.0f} GiB, and "
                f"{free / 2**30:,.0f} GiB are free; lower --batch or --max_tokens."
            )


def load(path: Path) -> Policy:
    """FileNotFoundError or ValueError where `path` is no checkpoint, or has no tokenizer."""
    if path.suffix == ".gguf":
        return _load_gguf(path)
    of_stage = path / "checkpoints" / "final"
    config, params, tokenizer = load_model(of_stage if of_stage.is_dir() else path)
    if tokenizer is None:
        raise ValueError(f"{path} has no tokenizer; copy its tokenizer.json or tokenizer.model there.")
    return Policy(config, params, Chat(tokenizers.load(tokenizer)))


def _load_gguf(path: Path) -> Policy:
    config, params, files = load_gguf(path)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        return Policy(config, params, Chat(tokenizers.load(folder)))
