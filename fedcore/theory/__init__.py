"""Predictions of the papers (optima, fixed points, rates and floors) for comparison with
measurements. NumPy only.
"""
