"""What goes wrong with checkpoints of other formats."""


class CheckpointError(ValueError):
    """A foreign checkpoint that cannot be read or written as it stands; one message lists every file and tensor."""
