"""Runs as Python files: each has get_config(), and a header with command, hardware, time and expected numbers."""
