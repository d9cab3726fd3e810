"""Measurements: paired rounds, intervals, floors, attribution and search."""
