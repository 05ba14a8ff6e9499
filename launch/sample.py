"""Talks to a checkpoint, or continues a text with it: python -m launch.sample CHECKPOINT [--prompt TEXT]."""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

from cascade_jax.checkpoint import load_model
from cascade_jax.config import SamplingConfig
from cascade_jax.data import tokenizer as tokenizers
from cascade_jax.data.chat import Chat
from cascade_jax.rollout.engine import LocalEngine
from cascade_jax.types import Prompt, Row

BUCKETS = tuple(2**n for n in range(5, 18))  # prompt lengths up to 131,072; a program is compiled when first needed


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0, or 2 for a user's mistake."""
    parser = argparse.ArgumentParser(prog="python -m launch.sample", description=__doc__)
    parser.add_argument(
        "checkpoint",
        type=Path,
        help="a Hugging Face folder, or a checkpoint of a run, e.g. runs/NAME/stages/STAGE/checkpoints/final",
    )
    parser.add_argument(
        "--prompt", help="answer this and end; without it, each line of the input is a turn of one chat"
    )
    parser.add_argument("--raw", action="store_true", help="continue each text as it is, without the chat format")
    parser.add_argument("--thinking", action="store_true", help="let the model think before it answers")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 takes the likeliest token (default 1)")
    parser.add_argument("--top_p", type=float, default=1.0, help="keep the likeliest tokens of this mass (default 1)")
    parser.add_argument("--max_tokens", type=int, default=256, help="of one answer (default 256)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if given.prompt == "":
        print("error: --prompt is empty; give a text, or leave --prompt out to type one.", file=sys.stderr)
        return 2
    texts = _lines() if given.prompt is None else [given.prompt]
    try:
        sampling = SamplingConfig(given.temperature, given.top_p, max_tokens=given.max_tokens)
        speaker = Speaker(given.checkpoint, sampling, seed=given.seed)
        answers = speaker.continuations(texts) if given.raw else speaker.chat(texts, thinking=given.thinking)
        for answer in answers:
            print(answer, flush=True)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"error: the package {error.name} is not installed; run pip install -e '.[data]'.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print()
    return 0


class Speaker:
    """A checkpoint that answers. FileNotFoundError or ValueError where it is none, or has no tokenizer."""

    def __init__(self, checkpoint: Path, sampling: SamplingConfig, *, seed: int) -> None:
        self.model, self.params, path = load_model(checkpoint)
        if path is None:
            raise ValueError(f"{checkpoint} has no tokenizer; copy its tokenizer.json or tokenizer.model there.")
        self.tokenizer = tokenizers.load(path)
        self.sampling, self.seed = sampling, seed

    def continuations(self, texts: Iterable[str]) -> Iterator[str]:
        """Each text goes on by itself."""
        engine = self._engine(self.tokenizer.stop_ids)
        for turn, text in enumerate(texts):
            yield self._shown(engine, self._draw(engine, self.tokenizer.encode(text, specials=True), turn))

    def chat(self, texts: Iterable[str], *, thinking: bool) -> Iterator[str]:
        """Each text is the user's next turn. What was sampled stays as it was, ids and all."""
        chat = Chat(self.tokenizer)
        engine = self._engine(chat.stop_ids)
        messages: list[dict[str, str]] = []
        prompt = answer = np.zeros(0, np.int32)
        for turn, text in enumerate(texts):
            user = {"role": "user", "content": text}
            extended = chat.extend(prompt, answer, [user], thinking=thinking) if messages else None
            messages.append(user)
            if extended is None:
                extended = chat.render(messages, thinking=thinking, generation_prompt=True).ids
            prompt = extended
            answer = self._draw(engine, prompt, turn)
            messages.append({"role": "assistant", "content": chat.parse(answer, prompt_ids=prompt).content})
            yield self._shown(engine, answer)

    def _engine(self, stop_ids: Sequence[int]) -> LocalEngine:
        return LocalEngine(self.model, self.params, stop_ids=stop_ids, buckets=BUCKETS)

    def _draw(self, engine: LocalEngine, ids: Sequence[int] | np.ndarray, turn: int) -> np.ndarray:
        prompt = Prompt(np.array(ids, np.int32), Row(id="the given text", kind="", messages=()), domain="")
        [group] = engine.generate([prompt], self.sampling, samples_per_prompt=1, seed=self.seed + turn)
        return group.samples[0].ids

    def _shown(self, engine: LocalEngine, ids: np.ndarray) -> str:
        """The text of an answer, without the id that ended it."""
        return self.tokenizer.decode([int(i) for i in ids if i not in engine.stop_ids])


def _lines() -> Iterator[str]:
    """Lines of the input, asked for where it is a terminal; empty ones are passed over."""
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        if line.strip():
            yield line


if __name__ == "__main__":
    sys.exit(main())
