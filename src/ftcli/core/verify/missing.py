"""What a check raises to be skipped."""

from __future__ import annotations


class Missing(Exception):  # noqa: N818 - not an error: the check is skipped with this reason
    """A part that was not given, so that a check cannot run."""
