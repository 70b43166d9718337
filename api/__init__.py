"""FedQ's HTTP interface, its Python client and its command line."""
