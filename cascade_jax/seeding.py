"""Everything random is derived from what it belongs to: (seed, stage, step, ...), never from what ran before it."""

import zlib

import numpy as np


def derive(seed: int, *parts: str | int) -> int:
    """A 31-bit seed for one use, e.g. derive(0, "if_rl", step, "rollout"); the same in every process."""
    words = [seed, *(zlib.crc32(part.encode()) if isinstance(part, str) else part for part in parts)]
    return int(np.random.SeedSequence(words).generate_state(1)[0] >> 1)
