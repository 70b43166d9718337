"""Exceptions that the client shares with what shows and converts results."""


class ClientError(Exception):
    """Base of all exceptions of the client."""


class MissingPackageError(ClientError):
    """A required package is not installed; the message names the extra of FedQ that installs it."""
