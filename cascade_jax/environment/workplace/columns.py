"""What the tables hold: their columns, the choices of some, and the moment at which all episodes take place."""

NOW = "2023-11-30 23:59:00"  # the system message of the published rows says so
# The first column of a table that tools change is its id.
COLUMNS: dict[str, tuple[str, ...]] = {
    "emails": ("email_id", "inbox/outbox", "sender/recipient", "subject", "sent_datetime", "body"),
    "events": ("event_id", "event_name", "participant_email", "event_start", "duration"),
    "visits": (
        *("date_of_visit", "visitor_id", "page_views", "session_duration_seconds", "traffic_source", "user_engaged"),
    ),
    "plots": ("plot_id", "file_path"),
    "tasks": ("task_id", "task_name", "assigned_to_email", "list_name", "due_date", "board"),
    "customers": (
        *("customer_id", "assigned_to_email", "customer_name", "customer_email", "customer_phone"),
        *("last_contact_date", "product_interest", "status", "follow_up_by", "notes"),
    ),
    "directory": ("email_address",),
}
CHOICES: dict[str, tuple[str, ...]] = {
    "list_name": ("Backlog", "In Progress", "In Review", "Completed"),
    "board": ("Back end", "Front end", "Design"),
    "status": ("Qualified", "Won", "Lost", "Lead", "Proposal"),
    "product_interest": ("Software", "Hardware", "Services", "Consulting", "Training"),
}
