"""The engine `compiled` on a GPU: a client's whole training in one program of one launch."""
