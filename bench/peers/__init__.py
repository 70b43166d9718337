"""The contenders: each a process, `python -m bench.peers.NAME FOLDER`, in an environment of its
own.

They import nothing of FedQ but this package (FedQ's own contender apart), read the files of
`bench.export`, and answer requests line by line.
"""
