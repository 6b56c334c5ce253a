"""What can go wrong, by what a caller can do about it."""

from __future__ import annotations


class FeedstockError(Exception):
    """Anything that feedstock raises. The message says what, where, the limit and the next step."""


class ConfigError(FeedstockError, ValueError):
    """An option, a filter, a URI, a state or a data set does not fit."""


class ForkError(ConfigError):
    """A data set, pipeline or loader is used in a process forked from the one that made it."""


class SampleError(FeedstockError):
    """A sample is unusable; the rest of the data set is fine (see ``Pipeline.on_error``).

    Where one message is about several samples of a batch, the attributes are those of the first. All are None where too
    many samples were skipped.
    """

    sample_id: int | None = None
    """The sample's id, as in ``Batch.sample_ids``."""
    uri: str | None = None
    """The URI of the stored object that holds it: a shard, a tar, or the sample's own file."""
    column: str | None = None
    """The mapped column whose value is unusable; None where several might be."""


class RetryableError(FeedstockError):
    """The same call may succeed later: time-outs, throttling, broken connections."""


class DeniedError(FeedstockError, PermissionError):
    """The storage refuses: credentials, permissions."""


class GoneError(FeedstockError, FileNotFoundError):
    """The object is not there, or is not the object that the catalog was built from."""


class InternalError(FeedstockError, RuntimeError):
    """A defect in feedstock."""
