"""Tools on the table of calendar events."""

from datetime import datetime
from typing import Any

from cascade_jax.environment.workplace.columns import COLUMNS
from cascade_jax.environment.workplace.tables import Database
from cascade_jax.environment.workplace.tool import PAGES, Tool, ToolError, address, page_of, record_of, text


def _field(db: Database, event_id: str, field: str) -> dict[str, str]:
    return {field: record_of(db, "events", event_id)[field]}


def _search(
    db: Database, query: str = "", time_min: str = "", time_max: str = "", page: int = 1, page_size: int = 5
) -> dict[str, Any]:
    first = _moment(time_min) if time_min else ""
    last = _moment(time_max) if time_max else "9999"
    found = [
        row
        for row in db.tables["events"]
        if (query.lower() in row["event_name"].lower() or query.lower() in row["participant_email"].lower())
        and first <= row["event_start"] <= last
    ]
    return page_of(sorted(found, key=lambda row: row["event_start"], reverse=True), "events", page, page_size)


def _create(db: Database, **values: str) -> str:
    return db.add("events", **{field: _checked(field, value) for field, value in values.items()})


def _delete(db: Database, event_id: str) -> str:
    db.remove("events", record_of(db, "events", event_id))
    return "Event deleted."


def _update(db: Database, event_id: str, field: str, new_value: str) -> str:
    db.change("events", record_of(db, "events", event_id), **{field: _checked(field, new_value)})
    return "Event updated."


def _checked(field: str, value: str) -> str:
    """The value as the table writes it."""
    if field == "participant_email":
        return address(value)
    if field == "event_start":
        return _moment(value)
    if field == "duration" and not (value.isdecimal() and int(value) > 0):
        raise ToolError(f"the duration is {value!r}; it must be a whole number of minutes above 0")
    return value


def _moment(value: str) -> str:
    try:
        return datetime.fromisoformat(value).replace(tzinfo=None).isoformat(sep=" ", timespec="seconds")
    except ValueError:
        raise ToolError(f"{value!r} is not a time; write YYYY-MM-DD HH:MM:SS") from None


_ID = {"event_id": text("Id of the event, 8 digits")}
_NEW = {
    "event_name": text("Name of the event"),
    "participant_email": text("Email address of the participant"),
    "event_start": text("Start of the event, YYYY-MM-DD HH:MM:SS"),
    "duration": text("Duration in minutes"),
}
_SEARCH = {
    "query": text("Text that is in the name or the participant's address"),
    "time_min": text("Earliest start, YYYY-MM-DD HH:MM:SS"),
    "time_max": text("Latest start, YYYY-MM-DD HH:MM:SS"),
    **PAGES,
}

TOOLS = (
    Tool(
        "calendar_get_event_information_by_id",
        "Gives one field of an event.",
        _field,
        {**_ID, "field": text("Field of the event", *COLUMNS["events"])},
        ("event_id", "field"),
    ),
    Tool("calendar_search_events", "Finds events, the latest first.", _search, _SEARCH),
    Tool("calendar_create_event", "Makes an event and gives its id.", _create, _NEW, tuple(_NEW)),
    Tool("calendar_delete_event", "Deletes an event.", _delete, _ID, ("event_id",)),
    Tool(
        "calendar_update_event",
        "Changes one field of an event.",
        _update,
        {**_ID, "field": text("Field to change", *_NEW), "new_value": text("Its new value")},
        ("event_id", "field", "new_value"),
    ),
)
