"""Data: random streams, data sets, partitions, mini-batch plans."""
