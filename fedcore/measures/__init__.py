"""What is measured of a model and of a round, beside the losses.

A measure has one name, in the specification, in the rows and in figures. One that has no meaning
for the problem, or no client to be measured on, is left out of the row; one that is undefined there
is infinite or NaN, and stored as null. docs/measures.md lists them.

What measures have in common.
"""

Measured = dict[str, float | list[float]]
"""Figures by name; one that is undefined is inf or NaN, and stored as absent."""
