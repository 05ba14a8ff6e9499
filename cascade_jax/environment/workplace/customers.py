"""Tools on the table of customers."""

from typing import Any

from cascade_jax.environment.workplace.columns import CHOICES, COLUMNS
from cascade_jax.environment.workplace.tables import Database, Record
from cascade_jax.environment.workplace.tool import PAGES, Tool, ToolError, page_of, record_of, text

_CONTAINED = ("customer_name", "customer_email", "product_interest", "status", "assigned_to_email")


def _search(db: Database, page: int = 1, page_size: int = 5, **wanted: str) -> dict[str, Any]:
    if not wanted:
        raise ToolError("give at least one field to search for")

    def fits(row: Record) -> bool:
        for key, value in wanted.items():
            if key in _CONTAINED and value.lower() not in row[key].lower():
                return False
            if key.endswith("_min") and not row[key.removesuffix("_min")] >= value:
                return False
            # A day as the last one means all of it, also where the table has the time of day.
            if key.endswith("_max") and not "" < row[key.removesuffix("_max")][: len(value)] <= value:
                return False
        return True

    return page_of([row for row in db.tables["customers"] if fits(row)], "customers", page, page_size)


def update(db: Database, customer_id: str, field: str, new_value: str) -> str:
    """Changes one field of a customer."""
    db.change("customers", record_of(db, "customers", customer_id), **{field: _checked(field, new_value)})
    return "Customer updated."


def _add(db: Database, **values: str) -> str:
    return db.add("customers", **{field: _checked(field, value) for field, value in values.items()})


def delete(db: Database, customer_id: str) -> str:
    """Deletes a customer."""
    db.remove("customers", record_of(db, "customers", customer_id))
    return "Customer deleted."


def _checked(field: str, value: str) -> str:
    """The value as the table writes it."""
    if field in CHOICES and value not in CHOICES[field]:
        raise ToolError(f"{field} must be one of {', '.join(CHOICES[field])}")
    return value.lower() if field.endswith("_email") else value


_ID = {"customer_id": text("Id of the customer, 8 digits")}
_NEW = {
    "customer_name": text("Name of the customer"),
    "assigned_to_email": text("Email address of the colleague in charge"),
    "status": text("Status of the customer", *CHOICES["status"]),
    "customer_email": text("Email address of the customer"),
    "customer_phone": text("Phone number of the customer"),
    "last_contact_date": text("Day of the last contact, YYYY-MM-DD"),
    "product_interest": text("Product that the customer asks for", *CHOICES["product_interest"]),
    "notes": text("Notes on the customer"),
    "follow_up_by": text("Day of the next contact, YYYY-MM-DD"),
}
_SEARCH = {
    **{key: text(f"Text that is in {key}") for key in _CONTAINED},
    "last_contact_date_min": text("First day of the last contact, YYYY-MM-DD"),
    "last_contact_date_max": text("Last day of the last contact, YYYY-MM-DD"),
    "follow_up_by_min": text("First day of the next contact, YYYY-MM-DD"),
    "follow_up_by_max": text("Last day of the next contact, YYYY-MM-DD"),
    **PAGES,
}
_PREFIX = "customer_relationship_manager"

TOOLS = (
    Tool(f"{_PREFIX}_search_customers", "Finds the customers that fit all that is given.", _search, _SEARCH),
    Tool(
        f"{_PREFIX}_update_customer",
        "Changes one field of a customer.",
        update,
        {**_ID, "field": text("Field to change", *COLUMNS["customers"][1:]), "new_value": text("Its new value")},
        ("customer_id", "field", "new_value"),
    ),
    Tool(
        f"{_PREFIX}_add_customer",
        "Adds a customer and gives the id.",
        _add,
        _NEW,
        ("customer_name", "assigned_to_email", "status"),
    ),
    Tool(f"{_PREFIX}_delete_customer", "Deletes a customer.", delete, _ID, ("customer_id",)),
)
