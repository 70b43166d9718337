"""What the papers predict: optima, fixed points, rates and floors, to lay beside what was measured.

NumPy only.
"""
