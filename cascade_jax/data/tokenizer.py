"""Text to ids and back, with a Hugging Face `tokenizer.json` or a SentencePiece `.model`; a trainer for small ones."""

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cascade_jax.data.side_files import ChatTemplate, chat_template, named_tokens, settings, stop_ids

CHAT_SPECIALS = (
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
_END_TOKENS = ("<|im_end|>", "</s>", "<|endoftext|>")
_SPACE = "\u2581"  # SentencePiece writes a space as this character


@dataclass(frozen=True)
class Tokenizer:
    """Use `load`. `specials` maps the text of every special token to its id; text never turns into one unless asked."""

    path: Path
    vocab_size: int
    specials: Mapping[str, int]
    eos_id: int | None
    stop_ids: tuple[int, ...]
    named_tokens: Mapping[str, str]  # text of bos_token, eos_token, ..., where tokenizer_config.json names them
    chat_template: ChatTemplate | None  # Jinja, where the file's folder has one
    encode_plain: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]

    def encode(self, text: str, *, specials: bool = False) -> list[int]:
        """Ids of the text. The names of special tokens in it are plain text, or those tokens with `specials=True`."""
        if specials:
            return [
                i
                for part in self.special_pattern.split(text)
                if part
                for i in ([self.specials[part]] if part in self.specials else self.encode_plain(part))
            ]
        # A special token is recognised in one piece only, so its name is cut after the first character.
        cuts = [start + 1 for start in self.special_starts(text)]
        parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        return [i for part in parts if part for i in self.encode_plain(part)]

    def token_id(self, token: str) -> int:
        """The id of a special token, by its text."""
        if token not in self.specials:
            raise ValueError(f"{self.path} has no special token {token!r}; it has {', '.join(self.specials)}.")
        return self.specials[token]

    def special_starts(self, text: str) -> list[int]:
        """Where the name of a special token begins."""
        return [match.start() for match in self._start_of_special.finditer(text)]

    @cached_property
    def special_pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self.specials, key=lambda s: (-len(s), s))
        return re.compile("(" + ("|".join(map(re.escape, longest_first)) or "(?!)") + ")")

    @cached_property
    def _start_of_special(self) -> re.Pattern[str]:
        return re.compile(f"(?={self.special_pattern.pattern})")  # zero-width, so that overlapping names are all found


def load(path: str | Path) -> Tokenizer:
    """A `tokenizer.json`, a SentencePiece `.model`, or a folder that holds one of them."""
    path = Path(path)
    if path.is_dir():
        found = [path / name for name in ("tokenizer.json", "tokenizer.model") if (path / name).exists()]
        if not found:
            raise FileNotFoundError(f"{path} holds neither tokenizer.json nor tokenizer.model; copy one there.")
        path = found[0]
    if not path.exists():
        raise FileNotFoundError(f"there is no tokenizer at {path}; give a tokenizer.json or a SentencePiece .model.")
    if path.suffix == ".json":
        return _load_huggingface(path)
    if path.suffix == ".model":
        return _load_sentencepiece(path)
    raise ValueError(f"{path} is no tokenizer that can be read; allowed are tokenizer.json and SentencePiece's .model.")


def _load_huggingface(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer as HuggingFace

    if "model" not in settings(path):
        raise ValueError(f"{path} is not a Hugging Face tokenizer (JSON with a `model` entry); fetch the file again.")
    try:
        model = HuggingFace.from_file(str(path))
    except Exception as error:  # the package raises no narrower class
        raise ValueError(f"{path} is not a Hugging Face tokenizer ({error}); fetch the file again.") from None
    return _with_side_files(
        path,
        vocab_size=model.get_vocab_size(),
        specials={token.content: i for i, token in sorted(model.get_added_tokens_decoder().items())},
        encode_plain=lambda text: model.encode(text, add_special_tokens=False).ids,
        decode=lambda ids: model.decode([int(i) for i in ids], skip_special_tokens=False),
    )


def _load_sentencepiece(path: Path) -> Tokenizer:
    from sentencepiece import SentencePieceProcessor

    try:
        model = SentencePieceProcessor(model_proto=path.read_bytes())
    except RuntimeError:
        raise ValueError(f"{path} is not a SentencePiece model; train or fetch it again.") from None
    size = model.get_piece_size()
    pieces = [model.id_to_piece(i) for i in range(size)]
    # Own table instead of model.decode: that drops special tokens.
    bytes_of = [
        bytes([int(piece[3:5], 16)]) if model.is_byte(i) else piece.replace(_SPACE, " ").encode()
        for i, piece in enumerate(pieces)
    ]
    literal_space_mark = [model.piece_to_id(f"<0x{byte:02X}>") for byte in _SPACE.encode()]

    def encode(text: str) -> list[int]:
        first, *rest = text.split(_SPACE)
        return model.encode(first) + [i for part in rest for i in literal_space_mark + model.encode(part)]

    def decode(ids: Sequence[int]) -> str:
        parts = [bytes_of[i] if 0 <= i < size else "\ufffd".encode() for i in ids]
        return b"".join(parts).decode(errors="replace")

    return _with_side_files(
        path,
        vocab_size=size,
        specials={piece: i for i, piece in enumerate(pieces) if model.is_control(i)},
        encode_plain=encode,
        decode=decode,
    )


def _with_side_files(path: Path, *, specials: Mapping[str, int], **fields: Any) -> Tokenizer:
    """Adds what Hugging Face keeps beside a tokenizer: the end token, the ids that stop generation, the template."""
    folder = path.parent
    named = named_tokens(folder)
    ends = [specials[token] for token in (named.get("eos_token"), *_END_TOKENS) if token in specials]
    return Tokenizer(
        path=path,
        specials=specials,
        eos_id=ends[0] if ends else None,
        stop_ids=tuple(dict.fromkeys([*stop_ids(folder / "generation_config.json"), *ends])),
        named_tokens=named,
        chat_template=chat_template(folder),
        **fields,
    )


def train_sentencepiece(
    texts: Iterable[str], path: str | Path, *, vocab_size: int = 512, pieces: Sequence[str] = ()
) -> Tokenizer:
    """A BPE vocabulary with byte fallback, written to `path`: every text comes back exactly, digits stand alone.

    `pieces` become one token each wherever they occur. The same texts and pieces give the same bytes.
    """
    from sentencepiece import SentencePieceTrainer

    fixed = 3 + len(CHAT_SPECIALS) + 256 + len(pieces)
    if fixed >= vocab_size:
        raise ValueError(
            f"vocab_size={vocab_size} is too small for {fixed} fixed tokens; raise it or give fewer pieces."
        )
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        character_coverage=1.0,
        control_symbols=list(CHAT_SPECIALS),
        user_defined_symbols=["\n", *(piece.replace(" ", _SPACE) for piece in dict.fromkeys(pieces) if piece != "\n")],
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
        max_sentence_length=1 << 20,
        num_threads=1,  # more threads may order equal merges differently
        minloglevel=2,
    )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.getvalue())
    return load(path)
