r"""Finding the last \boxed{...} of an answer."""

_OPEN = r"\boxed{"


def last_boxed(text: str) -> str | None:
    r"""The inside of the last \boxed{...} whose braces balance, or None. Escaped braces do not count."""
    start = text.rfind(_OPEN)
    while start >= 0:
        inside = _balanced(text, start + len(_OPEN))
        if inside is not None:
            return inside.strip()
        start = text.rfind(_OPEN, 0, start)
    return None


def _balanced(text: str, start: int) -> str | None:
    depth, i = 1, start
    while i < len(text):
        if text[i] == "\\":
            i += 2
            continue
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start:i]
        i += 1
    return None
