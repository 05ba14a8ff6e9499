"""Rows on disk to prompts and packed batches."""
