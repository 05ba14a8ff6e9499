"""Weights of other formats in and out. A module per format: `gguf`."""


class CheckpointError(ValueError):
    """A foreign checkpoint that cannot be read as it stands; one message lists every file and tensor at fault."""
