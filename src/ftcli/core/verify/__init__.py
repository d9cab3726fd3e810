"""Checks before the run: what they look at, how they are run, and what is written about them."""
