"""What measures have in common."""

Measured = dict[str, float | list[float]]
"""Figures by name; one that is undefined is inf or NaN, and stored as absent."""
