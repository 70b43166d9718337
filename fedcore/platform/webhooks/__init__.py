"""Webhooks: what is told, how it is signed, when it is tried again, and which addresses may be
reached; nothing here knows a database.
"""
