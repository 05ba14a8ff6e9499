"""Tools on the table of emails, and the company's directory of addresses."""

from typing import Any

from cascade_jax.environment.workplace.columns import COLUMNS, NOW
from cascade_jax.environment.workplace.tables import Database
from cascade_jax.environment.workplace.tool import PAGES, Tool, ToolError, address, page_of, record_of, text


def _find_address(db: Database, name: str = "") -> list[str]:
    if not name:
        raise ToolError("give a name or a part of one")
    return [row["email_address"] for row in db.tables["directory"] if name.lower() in row["email_address"].lower()]


def _field(db: Database, email_id: str, field: str) -> dict[str, str]:
    return {field: record_of(db, "emails", email_id)[field]}


def _search(
    db: Database, query: str = "", date_min: str = "", date_max: str = "9999", page: int = 1, page_size: int = 5
) -> dict[str, Any]:
    words = query.lower().split()
    found = [
        row
        for row in db.tables["emails"]
        if all(word in f"{row['subject']} {row['body']} {row['sender/recipient']}".lower() for word in words)
        and date_min[:10] <= row["sent_datetime"][:10] <= date_max[:10]
    ]
    return page_of(sorted(found, key=lambda row: row["sent_datetime"], reverse=True), "emails", page, page_size)


def send(db: Database, recipient: str, subject: str, body: str) -> str:
    """Sends an email and gives its id."""
    values = {"inbox/outbox": "outbox", "sender/recipient": address(recipient), "sent_datetime": NOW}
    return db.add("emails", subject=subject, body=body, **values)


def _delete(db: Database, email_id: str) -> str:
    db.remove("emails", record_of(db, "emails", email_id))
    return "Email deleted."


def _forward(db: Database, email_id: str, recipient: str) -> str:
    email = record_of(db, "emails", email_id)
    return send(db, recipient, f"FW: {email['subject']}", email["body"])


def reply(db: Database, email_id: str, body: str) -> str:
    """Answers an email and gives the answer's id."""
    email = record_of(db, "emails", email_id)
    return send(db, email["sender/recipient"], f"RE: {email['subject']}", body)


_ID = {"email_id": text("Id of the email, 8 digits")}
_TO = {"recipient": text("Email address of the recipient")}
_BODY = {"body": text("Text of the email")}
_DATES = {
    "date_min": text("First day on which it was sent, YYYY-MM-DD"),
    "date_max": text("Last day on which it was sent, YYYY-MM-DD"),
}
_SEARCH = {"query": text("Words that must all be in the subject, the body or the address"), **_DATES, **PAGES}

TOOLS = (
    Tool(
        "company_directory_find_email_address",
        "Finds the addresses of colleagues whose address contains a name.",
        _find_address,
        {"name": text("Name, or a part of it")},
    ),
    Tool(
        "email_get_email_information_by_id",
        "Gives one field of an email.",
        _field,
        {**_ID, "field": text("Field of the email", *COLUMNS["emails"])},
        ("email_id", "field"),
    ),
    Tool("email_search_emails", "Finds emails, the latest first.", _search, _SEARCH),
    Tool(
        "email_send_email",
        "Sends an email.",
        send,
        {**_TO, "subject": text("Subject of the email"), **_BODY},
        ("recipient", "subject", "body"),
    ),
    Tool("email_delete_email", "Deletes an email.", _delete, _ID, ("email_id",)),
    Tool("email_forward_email", "Forwards an email.", _forward, {**_ID, **_TO}, ("email_id", "recipient")),
    Tool("email_reply_email", "Answers an email.", reply, {**_ID, **_BODY}, ("email_id", "body")),
)
