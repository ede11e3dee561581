"""Every error mechview raises on purpose: one sentence a user can act on, and the exit code it means.

Exit codes: 0 done, 1 a check failed, 2 bad usage, 3 model not readable, 4 partial.
"""


class MechviewError(Exception):
    """Base of all expected failures; printed as one line, without a traceback."""

    exit_code = 1


class UsageError(MechviewError):
    """What was asked for does not exist or does not fit the model."""

    exit_code = 2


class HeadError(UsageError):
    """A layer, head or stack that the model does not have."""


class PromptError(UsageError):
    """A prompt that the model cannot read: empty, too long, or with unknown token ids."""


class OutputError(UsageError):
    """A result that cannot be written where it was asked to be."""


class ModelError(MechviewError):
    """The model cannot be found or read."""

    exit_code = 3


class UnsupportedError(ModelError):
    """A quantity that does not exist for this model, or an architecture out of reach."""


class CheckError(MechviewError):
    """A check against the model itself failed."""
