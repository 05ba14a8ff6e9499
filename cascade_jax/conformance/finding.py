"""What every check gives."""

from typing import NamedTuple


class Finding(NamedTuple):
    """One line: what was looked at, whether all is well, what was measured and, where it is not well, what mends it."""

    name: str
    ok: bool
    text: str
    fix: str = ""

    def __str__(self) -> str:
        text = f"{self.text.rstrip('.')}. To mend: {self.fix}" if self.fix else self.text
        return f"{'ok' if self.ok else 'problem':8} {self.name:24} {text}"
