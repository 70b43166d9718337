"""`python -m api.cli` is `fedq`."""

from api.cli import main

main()
