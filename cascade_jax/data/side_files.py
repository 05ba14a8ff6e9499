"""What Hugging Face keeps in the folder of a tokenizer: named tokens, the ids that stop generation, the chat template.

Every function gives ValueError, one sentence that names the file, where a file is not of the shape that it should have.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

# Names under which a chat template finds the text of a token, as transformers passes them.
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate(NamedTuple):
    """A Jinja template and the file that it stands in."""

    text: str
    file: Path


def named_tokens(folder: Path) -> dict[str, str]:
    """Name -> text of those tokens that tokenizer_config.json names, as a text or as {"content": text}."""
    file = folder / "tokenizer_config.json"
    values, found = settings(file), {}
    for name in NAMED_TOKENS:
        value = values.get(name)
        text = value.get("content") if isinstance(value, Mapping) else value
        if value is not None and not isinstance(text, str):
            raise ValueError(f"{file}: {name}={value!r} is no token; write its text, or remove the entry.")
        if text is not None:
            found[name] = text
    return found


def stop_ids(file: Path) -> tuple[int, ...]:
    """The ids that `eos_token_id` of the file names, which may be one id or a list; none where it has no such entry."""
    value = settings(file).get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise ValueError(f"{file}: eos_token_id={value!r} is no id and no list of ids; write the end token's id.")
    return tuple(ids)


def chat_template(folder: Path) -> ChatTemplate | None:
    """chat_template.jinja, else that of tokenizer_config.json, else of chat_template.json. An empty one is none."""
    jinja = folder / "chat_template.jinja"
    found = [ChatTemplate(_text(jinja), jinja)] if jinja.exists() else []
    for name in ("tokenizer_config.json", "chat_template.json"):
        file = folder / name
        found.append(ChatTemplate(_chosen(settings(file).get("chat_template"), file), file))
    return next((template for template in found if template.text.strip()), None)


def _chosen(value: Any, file: Path) -> str:
    """The text of a template; of several with names, the one named "default", else the first."""
    if isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        named = {str(item.get("name")): item.get("template") for item in value}
        value = named.get("default", next(iter(named.values()), ""))
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{file}: chat_template is neither a text nor a list of named templates; fetch it again.")
    return value or ""


def settings(file: Path) -> dict[str, Any]:
    """The JSON object that the file holds; an empty one where there is no file."""
    if not file.exists():
        return {}
    text = _text(file)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is no JSON ({error}); fetch it again.") from None
    if not isinstance(values, dict):
        raise ValueError(f"{file} holds a {type(values).__name__}, where a JSON object is needed; fetch it again.")
    return values


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise ValueError(f"{file} cannot be read ({reason}); fetch it again.") from None
