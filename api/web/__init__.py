"""Web pages: HTML over the same functions and rules as `/v1`; scripts and styles are served from
here only.
"""
