"""Repositories with a bug: their history, answers as changed files, and the tests that tell whether the bug is gone."""
