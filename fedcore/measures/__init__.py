"""Measures of a model and of a round, beside the losses.

A measure has one name, in the specification, in the rows and in figures. A measure that does not
apply to the problem, or has no client to be taken on, is left out of the row; an undefined value is
infinite or NaN, and stored as null. docs/measures.md lists them.
"""

Measured = dict[str, float | list[float]]
"""Values by name; an undefined value is inf or NaN."""
