"""What long prompts are made of: names that no text has by chance, and sentences that say nothing."""

from collections.abc import Iterator

import numpy as np

_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
WORD = r"(?:[bdfgklmnprstvz][aeiou]){4}"  # matches every `word`

NOISE = (
    "The rain has stopped.\n",
    "A door is open.\n",
    "Somebody walks along the wall.\n",
    "The kettle is on the stove, and the light is low.\n",
    "It is late.\n",
    "Nothing moves on the hill, and nobody waits at the gate.\n",
    "The clock goes on.\n",
    "Leaves lie on the path.\n",
    "So it was before.\n",
    "Bread and salt stand on the table by the window.\n",
)


def word(rng: np.random.Generator) -> str:
    """Four syllables: 24 million words."""
    return "".join(_SYLLABLES[i] for i in rng.integers(len(_SYLLABLES), size=4))


def name(rng: np.random.Generator) -> str:
    """Two words with capitals."""
    return f"{word(rng).capitalize()} {word(rng).capitalize()}"


def noise(rng: np.random.Generator) -> Iterator[str]:
    """Sentences in random order, without end."""
    while True:
        yield from (NOISE[i] for i in rng.integers(len(NOISE), size=1024))
