"""Pages for people: HTML over the same functions and rules that `/v1` has, with scripts and styles
that are served from here alone.
"""
