"""One ``map_rows`` step of a loader: batches in, batches with the function's columns out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from feedstock._rows.columns import Rows, spread
from feedstock._rows.function import RowFunction
from feedstock._rows.pickling import pickled
from feedstock._rows.processes import Processes
from feedstock._rows.skips import Skips
from feedstock._rows.spec import Spec, TensorSpec, check_name, spec_of
from feedstock._rows.threads import Threads
from feedstock.errors import ConfigError, SampleError


class Stage:
    """Runs one function on the rows of batches.

    Args:
        function: The function.
        number: The number of the step, from 0.
        seed: The seed of the ops.
        workers: Processes or threads.
        batches: Batches under way at once.
        output: The form of batches, "numpy" or "torch".
        skips: Where skipped samples are noted; None: the first bad sample is an error.
    """

    def __init__(
        self,
        function: RowFunction,
        number: int,
        seed: int,
        workers: int,
        batches: int,
        output: str,
        skips: Skips | None,
    ) -> None:
        self.function, self.batches = function, batches
        self.outputs: dict[str, Spec] | None = None if function.outputs is None else {**function.outputs}
        self._number, self._seed, self._workers = number, seed, workers
        self._output, self._skips = output, skips
        self._is_process = function.executor != "thread"
        #: The function, pickled; empty if threads run it.
        self.code = pickled(function) if self._is_process else b""
        self._executor: Processes | Threads | None = None

    def __str__(self) -> str:
        return str(self.function)

    def begin(self) -> None:
        """Makes the executor. Its processes or threads start with the first rows."""
        if self._executor is not None:
            return
        step, function = str(self), self.function
        if self._is_process:
            self._executor = Processes(
                step, self.code, self._seed, self._number, self._workers, function.timeout, self.batches
            )
        else:
            self._executor = Threads(step, function.fn, self._seed, self._number, self._workers)

    def end(self) -> None:
        """Ends the executor: processes at once, threads after their rows. ``begin`` makes another one."""
        if self._executor is not None:
            self._executor.close()

    def join(self, until: float) -> bool:
        """Waits for threads that run the function until ``until``; returns whether all have ended."""
        executor, self._executor = self._executor, None
        return executor.join(until) if isinstance(executor, Threads) else True

    def attempt(self, rows: Rows) -> Rows:
        """Runs the function on a batch of one row, sets ``outputs`` by its result, and returns the batch with it."""
        self.begin()
        assert self._executor is not None
        inputs = rows.inputs(self.function.inputs, str(self))
        if self.outputs is None:
            tried = self._executor.attempt(inputs.row(0), rows.ids[0], rows.epoch)
            results, failure = (
                {name: array[np.newaxis] for name, array in tried.values.items()},
                tried.failure,
            )
        else:
            results, failures = self._executor.run(inputs, rows.ids, rows.epoch, self.outputs)
            failure = failures.get(0)
        if failure is not None:
            raise ConfigError(
                f"{self} finds dtypes and shapes of the results on the first sample (id {rows.ids[0]}), on which the "
                f"function {failure}\nRepair the function, or declare all results with outputs="
            )
        for name in results:
            check_name(name)
        self.outputs = {name: spec_of(array[0]) for name, array in results.items()}
        rows.replace(results, self._output)
        return rows

    def __call__(self, rows: Rows) -> Rows:
        """Returns a batch with the function's columns. ``Rows.substituted`` fills bad rows after the last stage.

        Raises:
            SampleError: The function failed on a sample, and bad samples are not skipped.
        """
        results, failures = self._run(rows)
        if failures and self._skips is None:
            raise self._error(rows, failures)
        if failures:
            self._leave_out(rows, results, failures)
        self._put(rows, results)
        return rows

    def _run(self, rows: Rows) -> tuple[dict[str, Any], dict[int, str]]:
        """Runs the function on the rows that have not failed; others have zeros."""
        assert self._executor is not None
        assert self.outputs is not None
        inputs = rows.inputs(self.function.inputs, str(self))
        if not rows.bad:
            return self._executor.run(inputs, rows.ids, rows.epoch, self.outputs)
        count = len(rows.ids)
        good = [row for row in range(count) if row not in rows.bad]
        if not good:
            specs = {name: spec for name, spec in self.outputs.items() if isinstance(spec, TensorSpec)}
            return {name: np.zeros((count, *spec.shape), spec.dtype) for name, spec in specs.items()}, {}
        ids = [rows.ids[row] for row in good]
        results, failures = self._executor.run(inputs.only(good), ids, rows.epoch, self.outputs)
        # All are arrays: texts are of items, before which no row fails.
        spreads = {name: spread(column, good, count) for name, column in results.items()}
        return spreads, {good[row]: reason for row, reason in failures.items()}

    def _put(self, rows: Rows, results: Mapping[str, Any]) -> None:
        rows.replace(results, self._output)

    def _error(self, rows: Rows, failures: Mapping[int, str]) -> SampleError:
        first = min(failures)
        others = f"\n{len(failures) - 1} more samples of the batch failed" if len(failures) > 1 else ""
        error = SampleError(self._reason(rows, first, failures[first]) + others)
        error.sample_id = rows.ids[first]
        return error

    def _reason(self, rows: Rows, row: int, failure: str) -> str:
        return f"sample {rows.ids[row]} of epoch {rows.epoch}: {self} {failure}"

    def _leave_out(self, rows: Rows, results: Mapping[str, Any], failures: Mapping[int, str]) -> None:
        """Notes bad rows; their results are zeros."""
        assert self._skips is not None
        bad = sorted(failures)
        for column in results.values():
            if isinstance(column, np.ndarray):
                column[bad] = 0  # the memory may have been another batch's
        rows.bad.update(bad)
        counted = rows.invalidate(bad)
        reasons = [(rows.ids[row], self._reason(rows, row, failures[row])) for row in counted]
        self._skips.add(rows.place, reasons)
