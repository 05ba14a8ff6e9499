"""Tools on the table of visits to the website, which no tool changes, and on the plots that are made of it."""

from collections import defaultdict
from collections.abc import Callable

from cascade_jax.environment.workplace.tables import Database, Record
from cascade_jax.environment.workplace.tool import Tool, ToolError, text

_SOURCES = ("direct", "referral", "search engine", "social media")
_VALUES = (
    *("total_visits", "session_duration_seconds", "user_engaged", "visits_direct", "visits_referral"),
    *("visits_search_engine", "visits_social_media"),
)


def _visitor(db: Database, visitor_id: str) -> list[Record]:
    found = [row for row in db.tables["visits"] if row["visitor_id"] == visitor_id]
    if not found:
        raise ToolError(f"there is no visitor with the id {visitor_id}")
    return found


def _plot(db: Database, time_min: str, time_max: str, value_to_plot: str, plot_type: str) -> str:
    path = f"plots/{time_min}_{time_max}_{value_to_plot}_{plot_type}.png"
    db.add("plots", file_path=path)
    return path


def _by_day(db: Database, time_min: str, time_max: str, value: Callable[[Record], float]) -> dict[str, list[float]]:
    days: dict[str, list[float]] = defaultdict(list)
    for row in sorted(db.tables["visits"], key=lambda row: row["date_of_visit"]):
        if time_min <= row["date_of_visit"] <= (time_max or "9999"):
            days[row["date_of_visit"]].append(value(row))
    return days


def _total(db: Database, time_min: str = "", time_max: str = "") -> dict[str, int]:
    return {day: len(values) for day, values in _by_day(db, time_min, time_max, lambda row: 1).items()}


def _engaged(db: Database, time_min: str = "", time_max: str = "") -> dict[str, int]:
    days = _by_day(db, time_min, time_max, lambda row: row["user_engaged"] == "True")
    return {day: int(sum(values)) for day, values in days.items()}


def _from_source(db: Database, time_min: str = "", time_max: str = "", traffic_source: str = "") -> dict[str, int]:
    days = _by_day(db, time_min, time_max, lambda row: traffic_source in ("", row["traffic_source"]))
    return {day: int(sum(values)) for day, values in days.items()}


def _duration(db: Database, time_min: str = "", time_max: str = "") -> dict[str, float]:
    days = _by_day(db, time_min, time_max, lambda row: float(row["session_duration_seconds"]))
    return {day: sum(values) / len(values) for day, values in days.items()}


_DAYS = {"time_min": text("First day, YYYY-MM-DD"), "time_max": text("Last day, YYYY-MM-DD")}
_PLOT = {
    **_DAYS,
    "value_to_plot": text("Value to plot", *_VALUES),
    "plot_type": text("Kind of plot", "bar", "line", "scatter", "histogram"),
}
_SOURCE = {**_DAYS, "traffic_source": text("Where the visits came from", *_SOURCES)}

TOOLS = (
    Tool(
        "analytics_get_visitor_information_by_id",
        "Gives all visits of a visitor.",
        _visitor,
        {"visitor_id": text("Id of the visitor")},
        ("visitor_id",),
    ),
    Tool("analytics_create_plot", "Plots a value over days and gives the file.", _plot, _PLOT, tuple(_PLOT)),
    Tool("analytics_total_visits_count", "Counts visits by day.", _total, _DAYS),
    Tool("analytics_engaged_users_count", "Counts engaged visitors by day.", _engaged, _DAYS),
    Tool("analytics_traffic_source_count", "Counts visits from one source by day.", _from_source, _SOURCE),
    Tool("analytics_get_average_session_duration", "Gives the mean seconds of a visit by day.", _duration, _DAYS),
)
