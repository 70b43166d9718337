"""Webhooks: events, signatures, retry schedule, and the addresses that may be reached; independent
of the database.
"""
