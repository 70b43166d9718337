"""Actions of people, in a real browser against a real stack: `make e2e`, which needs a Chromium on
PATH.

The files are named `e2e_*.py`, so that `make test` does not collect them. All share one stack and
one browser (`conftest.py`), and each test fails where a page reports an error or breaks its
`Content-Security-Policy`. With `ARGS=--screenshots` the pictures of `docs/images/pages` are made
anew.
"""
