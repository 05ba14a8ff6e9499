"""The work on customers once more by tools of few tokens, for the models of a few hundred thousand parameters."""

from cascade_jax.environment.workplace import customers, email
from cascade_jax.environment.workplace.tables import Database
from cascade_jax.environment.workplace.tool import Tool, ToolError, record_of


def _find(db: Database, name: str) -> str:
    found = [row["customer_id"] for row in db.tables["customers"] if row["customer_name"] == name]
    if not found:
        raise ToolError(name)
    return " ".join(found)


def _set(db: Database, id: str, color: str) -> str:
    customers.update(db, id, "notes", color)
    return "ok"


def _send(db: Database, id: str, count: str) -> str:
    email.send(db, record_of(db, "customers", id)["customer_email"], "count", count)
    return "ok"


def _end(db: Database, id: str) -> str:
    customers.delete(db, id)
    return "ok"


_TEXT = {"type": "string"}

TOOLS = (
    Tool("find", "find", _find, {"name": _TEXT}, ("name",)),
    Tool("set", "set", _set, {"id": _TEXT, "color": _TEXT}, ("id", "color")),
    Tool("send", "send", _send, {"id": _TEXT, "count": _TEXT}, ("id", "count")),
    Tool("end", "end", _end, {"id": _TEXT}, ("id",)),
)
