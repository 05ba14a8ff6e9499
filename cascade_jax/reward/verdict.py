"""What a verifier says about one sample, and the checks that come before every other check."""

import math
from typing import Any, Protocol

from cascade_jax.types import Reply, Row, Sample, Verdict


class Verifier(Protocol):
    """Looks at `row` and `sample.reply` alone. Must be callable from several threads."""

    def verify(self, row: Row, sample: Sample) -> Verdict: ...


def unjudged(reason: str, **info: Any) -> Verdict:
    """No verdict: the row, the harness or the judge is at fault, not the answer."""
    return Verdict(math.nan, info=info, no_verdict=reason)


def wrong(reason: str, **info: Any) -> Verdict:
    """Reward 0 that is the answer's own fault."""
    return Verdict(0.0, info={"reason": reason, **info})


def unanswered(sample: Sample) -> Verdict | None:
    """A verdict where there is nothing to check, else None. Many checks hold of an empty text, so it goes first."""
    if sample.reply is None:
        return unjudged("the sample was not read back into a reply")
    if not sample.reply.content.strip() and not sample.reply.tool_calls:
        return wrong("empty answer")
    return None


def reply_of(sample: Sample) -> Reply:
    """The reply of a sample that `unanswered` let pass."""
    if sample.reply is None:
        raise ValueError("The sample has no reply; read it back with the tokenizer before it is verified.")
    return sample.reply
