"""Weights of other formats in and out: Hugging Face folders both ways, llama.cpp's GGUF in."""

from cascade_jax.model.convert.error import CheckpointError
from cascade_jax.model.convert.load import load_hf
from cascade_jax.model.convert.names import tensor_shapes
from cascade_jax.model.convert.save import save_hf
from cascade_jax.model.convert.settings import config_from_hf, config_to_hf

__all__ = ["CheckpointError", "config_from_hf", "config_to_hf", "load_hf", "save_hf", "tensor_shapes"]
