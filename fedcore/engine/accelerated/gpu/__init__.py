"""The engine `compiled` on a GPU: one launch, in which a program is one client's whole training."""
