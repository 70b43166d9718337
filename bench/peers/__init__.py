"""The contenders: each a process of its own, `python -m bench.peers.NAME FOLDER`, in an environment
of its own.

They import nothing of FedQ but this package (FedQ's own contender apart), read what `bench.export`
wrote, and answer requests line by line.
"""
