"""Rows token by token, for a terminal and as a page."""
