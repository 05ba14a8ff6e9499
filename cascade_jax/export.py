"""A finished stage as folders that other tools load."""

from pathlib import Path

import jax

from cascade_jax.model import lora
from cascade_jax.model.convert import CheckpointError, save_hf
from cascade_jax.model.convert.peft import save_adapter
from cascade_jax.processes import count, of_first, on_host
from cascade_jax.types import Params
from cascade_jax.workbench import Workbench


def export_stage(
    directory: Path, bench: Workbench, params: Params, *, source: Path | None, base: Path | None
) -> str | None:
    """`hf` in the stage's directory, for transformers and vLLM, and `adapter`, for PEFT, where it trained adapters.

    params: as trained, adapters unmerged. source: the Hugging Face folder that the run began from, whose dtypes and
    settings are kept; base: that of the weights that the stage began from. Returns why PEFT cannot hold the adapters.
    """
    whole = on_host if count() > 1 else lambda tree: tree
    stored = whole(jax.tree.map(lambda leaf, dtype: leaf.astype(dtype), lora.merge(params), bench.dtypes))
    params = whole(params)
    return of_first(lambda: _export(directory, bench, params, stored, source=source, base=base))


def _export(
    directory: Path, bench: Workbench, params: Params, stored: Params, *, source: Path | None, base: Path | None
) -> str | None:
    save_hf(directory / "hf", bench.model, stored, source=source, side_files=directory / "checkpoints" / "final")
    try:
        if lora.adapters(params):
            save_adapter(directory / "adapter", bench.model, params, base_model=str(base or ""))
    except CheckpointError as error:
        return str(error)
    return None
