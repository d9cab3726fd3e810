"""Prepared data, opened: rows, labels, documents and their texts, without a Python object a token."""
