"""What goes along with weights from folder to folder: tokenizer, template, settings (data.side_files reads them)."""

import json
import shutil
from pathlib import Path
from typing import Any

# What belongs to a model beside its weights and config.json. The .py files are the code of models that bring their own.
SIDE_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "additional_chat_templates",
    "generation_config.json",
    "*.py",
)
SETTINGS = "hf_config.json"  # under this name a checkpoint of ours keeps the config.json of theirs that it came from


def copy_side_files(source: Path, target: Path, *, settings: bool = False) -> None:
    """Tokenizer, chat template, generation settings: unchanged. `settings`: their config.json too, under SETTINGS."""
    kept, theirs = source / SETTINGS, source / "config.json"
    if settings and not kept.exists() and theirs.exists():
        kept = theirs if "model_type" in json.loads(theirs.read_text(encoding="utf-8")) else kept
    if settings and kept.exists():
        shutil.copyfile(kept, target / SETTINGS)
    for pattern in SIDE_FILES:
        for file in source.glob(pattern):
            copy = shutil.copytree if file.is_dir() else shutil.copyfile
            copy(file, target / file.name)


def kept_settings(folder: Path, kind: str) -> dict[str, Any] | None:
    """Their config.json, kept in a checkpoint of ours, if it is of that model_type."""
    file = folder / SETTINGS
    values = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return values if values.get("model_type") == kind else None
