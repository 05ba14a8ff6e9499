"""Runs as Python files: each has get_config() and says in its header the command, hardware, time and expected numbers."""
