"""Rows → batches: tasks, order, padding and which rank gets what."""
