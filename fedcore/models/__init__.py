"""The models that can be trained, and their parameters as one flat vector."""
