"""Errors of fedcore. Messages name the field, the value and the fix."""

from typing import Self


class FedcoreError(Exception):
    """Base class of all errors of fedcore."""


class SpecificationError(FedcoreError):
    """A well-formed specification that cannot be run; `pointer` is a JSON pointer to the field."""

    def __init__(self, pointer: str, detail: str) -> None:
        super().__init__(f"{pointer}: {detail}")
        self.pointer = pointer
        self.detail = detail


class SettingsError(FedcoreError):
    """Invalid settings; each line of the message names one."""


class SchemaError(FedcoreError):
    """A database of another version of FedQ; the message says what to do."""


class NewerSchemaError(SchemaError):
    """A database that a newer version has migrated."""


class DataUnavailableError(FedcoreError):
    """A data set that is not on this machine; the message says where to put its files."""


class ExtensionError(FedcoreError):
    """An installed package or a bundle whose components cannot be used; the message names it."""


class UserCodeError(FedcoreError):
    """An error of code that users brought; the message says where in it."""


class UploadError(FedcoreError):
    """An uploaded file that cannot be used.

    `name` is the array or column at fault, empty for the file as a whole.
    """

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name or 'file'}: {detail}")
        self.name = name
        self.detail = detail

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        # Files are read in processes of their own, from which the error comes.
        return type(self), (self.name, self.detail)


class StorageError(FedcoreError):
    """The storage is unavailable, full or damaged; a retry may succeed."""


class CheckpointError(FedcoreError):
    """A checkpoint that cannot be read, or that belongs to another run."""


class PresetNotFoundError(FedcoreError):
    """No preset has this name; the message suggests names that exist."""


class ResourceNotFoundError(FedcoreError):
    """No experiment, run or model has this id."""


class AuthenticationError(FedcoreError):
    """No API key, or one that is unknown, expired or revoked."""


class ForbiddenError(FedcoreError):
    """The API key does not allow this."""


class RateError(FedcoreError):
    """The rate limit of the API key is exceeded; retry after `wait_s` seconds."""

    def __init__(self, message: str, wait_s: int) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class QuotaError(FedcoreError):
    """The request exceeds a quota of the API key."""


class StateConflictError(FedcoreError):
    """The request conflicts with the present state of the experiment or run."""


class IdempotencyError(FedcoreError):
    """An idempotency key was used before with another request body."""


class NoClosedFormError(FedcoreError):
    """No closed form is known for an arm; the message gives the reason."""


class WebhookUrlError(FedcoreError):
    """A URL to which webhooks may not be sent; the message gives the reason without the URL."""


class BackupError(FedcoreError):
    """A backup that cannot be created or restored; the message gives the reason."""


class BusyError(FedcoreError):
    """The machine was too busy, or had too little memory, to do it in time; a retry may succeed."""


class StaleLeaseError(FedcoreError):
    """A worker lost its run: the lease expired and another worker may have claimed it."""
