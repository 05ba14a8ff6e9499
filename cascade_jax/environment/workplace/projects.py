"""Tools on the table of project tasks."""

from cascade_jax.environment.workplace.columns import CHOICES, COLUMNS
from cascade_jax.environment.workplace.tables import Database, Record
from cascade_jax.environment.workplace.tool import Tool, ToolError, address, record_of, text


def _field(db: Database, task_id: str, field: str) -> dict[str, str]:
    return {field: record_of(db, "tasks", task_id)[field]}


def _search(db: Database, **wanted: str) -> list[Record]:
    if not wanted:
        raise ToolError("give at least one field to search for")
    return [row for row in db.tables["tasks"] if all(text.lower() in row[key].lower() for key, text in wanted.items())]


def _create(db: Database, **values: str) -> str:
    return db.add("tasks", **{field: _checked(db, field, value) for field, value in values.items()})


def _delete(db: Database, task_id: str) -> str:
    db.remove("tasks", record_of(db, "tasks", task_id))
    return "Task deleted."


def _update(db: Database, task_id: str, field: str, new_value: str) -> str:
    db.change("tasks", record_of(db, "tasks", task_id), **{field: _checked(db, field, new_value)})
    return "Task updated."


def _checked(db: Database, field: str, value: str) -> str:
    """The value as the table writes it."""
    if field in CHOICES and value not in CHOICES[field]:
        raise ToolError(f"{field} must be one of {', '.join(CHOICES[field])}")
    if field != "assigned_to_email":
        return value
    value = address(value)
    if value not in {row["email_address"].lower() for row in db.tables["directory"]}:
        raise ToolError(f"{value} is not in the company's directory")
    return value


_ID = {"task_id": text("Id of the task, 8 digits")}
_NEW = {
    "task_name": text("Name of the task"),
    "assigned_to_email": text("Email address of the colleague who does it"),
    "list_name": text("List that the task stands in", *CHOICES["list_name"]),
    "due_date": text("Day on which it is due, YYYY-MM-DD"),
    "board": text("Board of the task", *CHOICES["board"]),
}
_SEARCH = {key: text(f"Text that is in the task's {key}") for key in _NEW}

TOOLS = (
    Tool(
        "project_management_get_task_information_by_id",
        "Gives one field of a task.",
        _field,
        {**_ID, "field": text("Field of the task", *COLUMNS["tasks"])},
        ("task_id", "field"),
    ),
    Tool("project_management_search_tasks", "Finds the tasks that fit all that is given.", _search, _SEARCH),
    Tool("project_management_create_task", "Makes a task and gives its id.", _create, _NEW, tuple(_NEW)),
    Tool("project_management_delete_task", "Deletes a task.", _delete, _ID, ("task_id",)),
    Tool(
        "project_management_update_task",
        "Changes one field of a task.",
        _update,
        {**_ID, "field": text("Field to change", *_NEW), "new_value": text("Its new value")},
        ("task_id", "field", "new_value"),
    ),
)
