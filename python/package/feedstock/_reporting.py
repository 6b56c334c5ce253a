"""What a loader reports about its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedstock._reports import Ledger, LoaderStats, SkipReport, WarningReport, skip_report, warning_report

if TYPE_CHECKING:
    from feedstock import _feedstock
    from feedstock._rows.steps import RowSteps


class Reports:
    """The part of a loader that reports what it did."""

    _native: _feedstock.Loader
    _rows: RowSteps | None
    #: Statistics and ledger of a run whose memory was released.
    _last_run: tuple[LoaderStats, Ledger | None]
    #: Ledger of the finished epoch, while a batch of the next one was peeked at only.
    _finished: Ledger | None

    def stats(self) -> LoaderStats:
        """Returns counters of the current run; an empty dict before anything runs.

        Among them are samples, steps, bytes fetched, seconds in ops and in storage, and slots held.

        - ``waited_seconds``: the time that the caller waited for batches. ``waited_map_python_seconds``: the part of it
          in which functions of ``map_python`` and ``map_rows`` ran. More workers reduce only the rest.
        - ``hedges``: how often rows of a slow worker were also requested from another one. ``hedged_samples``: the
          number of these rows. Both are 0 while no worker is slow.
        - ``workers``: how many workers the job requests rows from. ``spare_workers``: how many more there are. They
          stand by for workers that fail; each rank has about 32 workers already, so more do not raise throughput.
        """
        return self._native.stats() or self._last_run[0]

    def ledger(self) -> Ledger | None:
        """Returns the proof of exactly-once delivery for the current epoch, or the one that just ended.

        It covers the batches since the loader started or was last moved.

        Returns:
            ``epoch``; ``planned`` and ``delivered``, the samples of this rank; ``padded`` and ``substituted`` rows;
            ``digest_planned`` and ``digest_delivered``; and ``exact``, which is true if both agree. None before
            anything runs, and after ``close``.
        """
        return self._finished or self._ledger() or self._last_run[1]

    def _ledger(self) -> Ledger | None:
        ledger = self._native.ledger()
        return ledger if self._rows is None else self._rows.ledger(ledger)

    def skip_report(self) -> SkipReport:
        """Returns the samples that ``on_error("skip")`` skipped.

        Returns:
            ``count``; and ``samples``, the first 8,192 as dicts of ``sample_id``, ``epoch`` and ``reason``.
        """
        report = skip_report(*self._native.skip_report())
        return report if self._rows is None else self._rows.report(report)

    def warning_report(self) -> WarningReport:
        """Returns the decoders' warnings about samples that were delivered.

        Kinds of warnings:

        - ``"end_unknown"``: the container does not state where the audio ends, so a missing end is not noticed.
        - ``"later_streams"``: the Ogg file is a chain of streams, of which the first was decoded.
        - ``"damaged_data"``: some pixels of the image may be wrong. nvJPEG decodes its share without warnings.

        Returns:
            ``counts``, the number of samples by kind; and ``samples``, the first 8,192 as dicts of ``sample_id``,
            ``epoch`` and ``kinds``.
        """
        return warning_report(*self._native.warning_report())

    def padding_share(self, output: str) -> float | None:
        """Returns the share of tensor ``output`` that was padding so far, 0 to 1; None if its rows have one length."""
        return self._native.padding_share(output)
