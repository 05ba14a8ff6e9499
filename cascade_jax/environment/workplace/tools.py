"""All tools of the workplace, and what a call of one gives back to the model."""

import json
from collections.abc import Sequence

from cascade_jax.environment.workplace import analytics, calendar, customers, email, projects, short
from cascade_jax.environment.workplace.tables import Database
from cascade_jax.environment.workplace.tool import Tool, ToolError
from cascade_jax.types import ToolCall

OFFERED = (*email.TOOLS, *calendar.TOOLS, *analytics.TOOLS, *projects.TOOLS, *customers.TOOLS)  # where a row has none
TOOLS: dict[str, Tool] = {tool.name: tool for tool in (*OFFERED, *short.TOOLS)}


def run(database: Database, call: ToolCall, offered: Sequence[str] = tuple(TOOLS)) -> str:
    """The result of a call, as a text. ToolError: there is no such tool among those offered, or it refuses the call."""
    if call.name not in offered or call.name not in TOOLS:
        raise ToolError(f"there is no tool {call.name}")
    result = TOOLS[call.name](database, call.arguments)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
