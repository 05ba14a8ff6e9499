"""Where an answer ends: what the template writes, what our engine stops at, what the side files tell other engines."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cascade_jax.config import ModelConfig
from cascade_jax.conformance.finding import Finding
from cascade_jax.conformance.template import Example, trained_runs
from cascade_jax.data.chat import Chat
from cascade_jax.data.side_files import stop_ids
from cascade_jax.data.tokenizer import Tokenizer


class Declared(NamedTuple):
    """The stop ids that a file names."""

    file: str
    ids: tuple[int, ...]


def declared_stops(folder: Path) -> Declared | None:
    """What transformers and vLLM stop at: generation_config.json's `eos_token_id`, else config.json's, else None.

    ValueError names the file whose entry is neither an id nor a list of ids.
    """
    for name in ("generation_config.json", "config.json"):
        if ids := stop_ids(folder / name):
            return Declared(name, ids)
    return None


def engine_stops(chat: Chat, shown: Example) -> Finding:
    """An assistant's turn ends with one special token, and our engine stops at it."""
    ends = turn_ends(shown)
    specials = set(chat.tokenizer.specials.values())
    if not ends or not set(ends) <= specials:
        return Finding(
            "stop ids",
            False,
            f"turns end with {_named(chat.tokenizer, ends)}, which is no special token of the vocabulary",
            "add the template's end token to the tokenizer, or give the tokenizer that belongs to the template.",
        )
    text = f"turns end with {_named(chat.tokenizer, ends)}; our engine stops at {_named(chat.tokenizer, chat.stop_ids)}"
    if set(ends) <= set(chat.stop_ids):
        return Finding("stop ids", True, text)
    return Finding("stop ids", False, text, "name the turn's end as eos_token in tokenizer_config.json.")


def file_stops(chat: Chat, shown: Example, declared: Declared | None) -> Finding:
    """Engines that read the side files stop at the end of a turn, too."""
    name, ends = "stop ids of the files", turn_ends(shown)
    if declared is None:
        return Finding(name, True, "none are given; transformers and vLLM get them when the weights are exported")
    text = f"{declared.file} stops at {_named(chat.tokenizer, declared.ids)}"
    wanted = f'"eos_token_id": {json.dumps(sorted({*declared.ids, *ends} & set(range(chat.tokenizer.vocab_size))))}'
    unknown = [i for i in declared.ids if not 0 <= i < chat.tokenizer.vocab_size]
    if unknown:
        text += f", and the vocabulary has only {chat.tokenizer.vocab_size:,} tokens"
        return Finding(name, False, text, f"write {wanted} in generation_config.json.")
    if set(ends) <= set(declared.ids):
        return Finding(name, True, text)
    text += f", but turns end with {_named(chat.tokenizer, ends)}: transformers and vLLM would not stop"
    return Finding(name, False, text, f"write {wanted} in generation_config.json.")


def vocabulary(tokenizer: Tokenizer, config: ModelConfig) -> Finding:
    """Every token has a row in the embedding."""
    last = max([tokenizer.vocab_size - 1, *tokenizer.specials.values()])
    text = f"the tokenizer's last id is {last:,}, the embedding has {config.vocab_size:,} rows"
    fits = last < config.vocab_size
    return Finding("vocabulary", fits, text, "" if fits else "give the tokenizer that belongs to these weights.")


def turn_ends(shown: Example) -> list[int]:
    """The ids that trained runs end with, each once."""
    return list(dict.fromkeys(int(run[-1]) for run in trained_runs(shown.rendered)))


def _named(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    names = [f"{tokenizer.decode([i])!r} ({i})" if 0 <= i < tokenizer.vocab_size else f"({i})" for i in ids]
    return ", ".join(names) or "nothing"
