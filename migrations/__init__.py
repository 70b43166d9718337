"""The database's schema as a chain of revisions; imports nothing of the application."""
