"""A workplace of five tables and a directory: email, calendar, analytics, projects and customers, with 27 tools."""

from cascade_jax.environment.workplace.episode import Workplace

__all__ = ["Workplace"]
