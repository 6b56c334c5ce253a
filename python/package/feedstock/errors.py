"""Exceptions, by what a caller can do about them."""

from __future__ import annotations


class FeedstockError(Exception):
    """The base of feedstock's exceptions. Messages state what happened, where, the limit, and what to do."""


class ConfigError(FeedstockError, ValueError):
    """An option, a filter, a URI, a state or a data set is not valid."""


class ForkError(ConfigError):
    """A data set, pipeline or loader was made in another process, from which this one was forked."""


class SampleError(FeedstockError):
    """A sample cannot be used; others can (see ``Pipeline.on_error``).

    If the message is about several samples of a batch, the attributes are those of the first. All are None if too many
    samples were skipped.
    """

    sample_id: int | None = None
    """The sample's id, as in ``Batch.sample_ids``."""
    uri: str | None = None
    """The URI of the stored object with the sample: a shard, a tar, or the sample's file."""
    column: str | None = None
    """The mapped column with the bad value; None if it may be one of several."""


class RetryableError(FeedstockError):
    """A repeated call may succeed: time-outs, throttling, broken connections."""


class DeniedError(FeedstockError, PermissionError):
    """The storage denies access: credentials, permissions."""


class GoneError(FeedstockError, FileNotFoundError):
    """The object does not exist, or differs from the object of which the catalog was built."""


class InternalError(FeedstockError, RuntimeError):
    """A defect in feedstock."""
