"""Models, and their parameters as one flat vector."""
