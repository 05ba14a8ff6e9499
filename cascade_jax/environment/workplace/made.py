"""A small workplace made out of a seed: a dozen colleagues, and a few dozen records in each table."""

from datetime import datetime, timedelta

import numpy as np

from cascade_jax.environment.workplace.columns import CHOICES
from cascade_jax.seeding import derive

_FIRST = ("ada", "boris", "chloe", "dana", "emil", "farah", "goran", "hana", "ivo", "jun", "kofi", "lucia")
_LAST = ("adler", "brandt", "costa", "dimov", "engel", "fofana", "grant", "horvat", "ito", "jensen", "kaya", "lopez")
_TOPICS = ("budget review", "launch plan", "hiring round", "website redesign", "supplier contract", "team offsite")
_WORK = (
    "Fix login page",
    "Draw new icons",
    "Speed up search",
    "Write release notes",
    "Test payment form",
    "Clean logs",
)
_COMPANIES = ("northlake", "bluepine", "ironbridge", "sunfield", "greyharbor", "redwillow")
_SOURCES = ("direct", "referral", "search engine", "social media")
_START = datetime(2023, 10, 1, 9)


def make_tables(seed: int) -> dict[str, list[dict[str, str]]]:
    """The same tables for the same seed, on every machine."""
    rng = np.random.default_rng(derive(seed, "workplace"))
    people = [f"{first}.{last}@atlas.com" for first, last in zip(_FIRST, rng.permutation(_LAST), strict=True)]

    def one(choices: tuple[str, ...] | list[str]) -> str:
        return str(choices[rng.integers(len(choices))])

    def moment(days: int = 60) -> datetime:
        return _START + timedelta(days=int(rng.integers(days)), minutes=30 * int(rng.integers(16)))

    def ids(count: int) -> list[str]:
        return [f"{number:08d}" for number in rng.permutation(count) + 1]

    return {
        "directory": [{"email_address": person} for person in people],
        "emails": [
            {
                "email_id": key,
                "inbox/outbox": one(("inbox", "inbox", "outbox")),
                "sender/recipient": one(people),
                "subject": f"{one(('Update on', 'Question about', 'Notes on'))} {one(_TOPICS)}",
                "sent_datetime": str(moment()),
                "body": f"Hello Sam, on the {one(_TOPICS)}: {one(('all is well', 'we are late', 'please call'))}.",
            }
            for key in ids(60)
        ],
        "events": [
            {
                "event_id": key,
                "event_name": one(_TOPICS),
                "participant_email": one(people),
                "event_start": str(moment(days=75)),
                "duration": one(("30", "60", "90")),
            }
            for key in ids(40)
        ],
        "visits": [
            {
                "date_of_visit": str(moment().date()),
                "visitor_id": f"{1000 + number}",
                "page_views": str(rng.integers(1, 12)),
                "session_duration_seconds": str(rng.integers(1, 60)),
                "traffic_source": one(_SOURCES),
                "user_engaged": one(("True", "False")),
            }
            for number in range(90)
        ],
        "tasks": [
            {
                "task_id": key,
                "task_name": one(_WORK),
                "assigned_to_email": one(people),
                "list_name": one(CHOICES["list_name"]),
                "due_date": str(moment(days=75).date()),
                "board": one(CHOICES["board"]),
            }
            for key in ids(40)
        ],
        "customers": [_customer(key, rng, people) for key in ids(40)],
    }


def _customer(key: str, rng: np.random.Generator, people: list[str]) -> dict[str, str]:
    first, last, company = (str(rng.choice(names)) for names in (_FIRST, _LAST, _COMPANIES))
    contact = _START + timedelta(days=int(rng.integers(60)))
    return {
        "customer_id": key,
        "assigned_to_email": str(rng.choice(people)),
        "customer_name": f"{first} {last}".title(),
        "customer_email": f"{first}.{last}@{company}.com",
        "customer_phone": f"555-{rng.integers(1000, 10_000)}",
        "last_contact_date": str(contact.date()),
        "product_interest": str(rng.choice(CHOICES["product_interest"])),
        "status": str(rng.choice(CHOICES["status"])),
        "follow_up_by": str((contact + timedelta(days=int(rng.integers(5, 30)))).date()),
        "notes": f"{contact.date()}: Had a call.",
    }
