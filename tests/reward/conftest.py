"""Rows and samples as the verifiers see them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cascade_jax.types import Group, Prompt, Reply, Row, Sample, ToolCall


@pytest.fixture(scope="session")
def row() -> Callable[..., Row]:
    def make(kind: str = "test", *, ask: str = "Describe a kite.", name: str = "row", **fields: Any) -> Row:
        return Row(name, kind, ({"role": "user", "content": ask},), fields=fields)

    return make


@pytest.fixture(scope="session")
def sample() -> Callable[..., Sample]:
    def make(
        text: str | None, *calls: ToolCall, reasoning: str = "", malformed: str | None = None, stop: str = "stop"
    ) -> Sample:
        reply = None if text is None else Reply(text, reasoning, calls, malformed)
        return Sample(np.zeros(1, np.int32), np.zeros(1, np.float32), np.ones(1, bool), stop, 0, reply)

    return make


@pytest.fixture(scope="session")
def group() -> Callable[..., Group]:
    def make(row: Row, *samples: Sample) -> Group:
        return Group(Prompt(np.zeros(1, np.int32), row, "domain"), samples)

    return make
