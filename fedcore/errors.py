"""The errors of fedcore: each says what was wrong, with the value, and what would be right."""


class FedcoreError(Exception):
    """Anything that fedcore refuses or cannot do."""


class SpecificationError(FedcoreError):
    """A specification that is well formed but cannot be run.

    `pointer` is the JSON pointer of the culprit.
    """

    def __init__(self, pointer: str, detail: str) -> None:
        super().__init__(f"{pointer}: {detail}")
        self.pointer = pointer
        self.detail = detail


class SettingsError(FedcoreError):
    """Settings that make no sense; each line of the message names one."""


class DataUnavailableError(FedcoreError):
    """A data set that is not on this machine; the message says where to put its files."""


class UploadError(FedcoreError):
    """A user's data set that cannot be trained on.

    `name` is the array or column at fault, empty for the file as a whole.
    """

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name or 'file'}: {detail}")
        self.name = name
        self.detail = detail


class StorageError(FedcoreError):
    """The storage is away, full or broken: the same may work later."""


class CheckpointError(FedcoreError):
    """A checkpoint that cannot be read, or that belongs to another run."""


class PresetNotFoundError(FedcoreError):
    """No preset has this name; the message lists those that exist."""


class NotFoundError(FedcoreError):
    """No experiment, run or model has this id."""


class AuthenticationError(FedcoreError):
    """No API key, or one that is unknown, expired or revoked."""


class ForbiddenError(FedcoreError):
    """The API key does not allow this."""


class RateError(FedcoreError):
    """The API key was used too often; the same may work `wait_s` seconds later."""

    def __init__(self, message: str, wait_s: int) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class QuotaError(FedcoreError):
    """What was asked for is more than the API key may have."""


class ConflictError(FedcoreError):
    """The request makes no sense in the present state of the experiment or run."""


class IdempotencyError(FedcoreError):
    """An idempotency key was used before with another request body."""


class NoClosedFormError(FedcoreError):
    """No closed form is known for an arm; the message says what stands in the way."""


class WebhookUrlError(FedcoreError):
    """A URL that webhooks may not be sent to; the message says why, without repeating it."""


class BackupError(FedcoreError):
    """A backup that cannot be taken or put back; the message says why."""


class StaleLeaseError(FedcoreError):
    """A worker lost its run: the lease expired and another worker may have claimed it."""
