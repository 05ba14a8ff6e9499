"""Prompts of agentless repair: an issue, some files of the repository, and the format of the answer (recipe.md 12).

Two forms: only the files that the gold patch changes (`golden`), or these among others that a search would find
(`retrieved`), in an order that tells nothing.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

FORMAT = """Give every change as a fenced block. It begins with ### and the path of the file; then come, once for each \
place, the lines as they are between <<<<<<< SEARCH and =======, and the lines as they should be between ======= and \
>>>>>>> REPLACE. The lines to search for stand in the file exactly so, indentation included, and only once.

```python
### folder/file.py
<<<<<<< SEARCH
    return a - b
=======
    return a + b
>>>>>>> REPLACE
```"""
_WORD = re.compile(r"[A-Za-z][a-z]*|[A-Z]+|\d+")
_K1, _B = 1.5, 0.75


def repair_messages(issue: str, files: Mapping[str, str]) -> tuple[dict[str, Any], ...]:
    """One user message: the issue, the files in their order, the format."""
    shown = "\n\n".join(f"### {path}\n```\n{text.rstrip()}\n```" for path, text in files.items())
    return ({"role": "user", "content": f"Repair this issue.\n\n{issue.strip()}\n\n{shown}\n\n{FORMAT}"},)


def shown_files(
    issue: str,
    files: Mapping[str, str],
    gold: Sequence[str],
    *,
    retrieved: int,
    longest: int,
    tokens: Callable[[str], int],
    seed: int,
) -> dict[str, str]:
    """The files of one prompt, in random order: the gold ones, then the best ranked until `retrieved` are together.

    retrieved: 0 for the golden form, 5 for the other. A file is left out where the prompt would get more than `longest`
    tokens with it. ValueError: a gold file is not there, or the gold files alone are too long.
    """
    lacking = [path for path in gold if path not in files]
    if lacking:
        raise ValueError(f"the repository has no file {lacking[0]}, which the gold patch changes")

    def fits(paths: Sequence[str]) -> bool:
        content = repair_messages(issue, {path: files[path] for path in paths})[0]["content"]
        return tokens(content) <= longest

    chosen = list(dict.fromkeys(gold))
    if not fits(chosen):
        raise ValueError(f"the files that the gold patch changes do not fit into {longest} tokens")
    for path in rank_files(issue, files) if len(chosen) < retrieved else ():
        if len(chosen) == retrieved:
            break
        if path not in chosen and fits([*chosen, path]):
            chosen.append(path)
    order = np.random.default_rng(seed).permutation(len(chosen))
    return {chosen[i]: files[chosen[i]] for i in order}


def rank_files(issue: str, files: Mapping[str, str]) -> list[str]:
    """Paths by BM25 of path and text against the issue, the best first (equal ones by name)."""
    counts = {path: Counter(_words(f"{path} {text}")) for path, text in files.items()}
    mean = sum(count.total() for count in counts.values()) / max(1, len(counts))
    rare = {}
    for word in set(_words(issue)):
        having = sum(word in count for count in counts.values())
        rare[word] = math.log(1 + (len(counts) - having + 0.5) / (having + 0.5))

    def score(path: str) -> float:
        count = counts[path]
        length = _K1 * (1 - _B + _B * count.total() / max(1.0, mean))
        return sum(weight * count[word] * (_K1 + 1) / (count[word] + length) for word, weight in rare.items())

    return sorted(files, key=lambda path: (-score(path), path))


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]
