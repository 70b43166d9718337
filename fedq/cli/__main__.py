"""`python -m fedq.cli` is `fedq`."""

from fedq.cli import main

main()
