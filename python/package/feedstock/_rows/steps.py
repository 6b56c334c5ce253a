"""The ``map_rows`` steps of one loader."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from feedstock import _feedstock
from feedstock._ahead import Ahead, Function, functions_of
from feedstock._check import batch_sizes
from feedstock._rows.columns import Rows
from feedstock._rows.function import ItemFunction, RowFunction
from feedstock._rows.item_stage import ItemStage
from feedstock._rows.items import INDEX
from feedstock._rows.remote import add_results, sent
from feedstock._rows.skips import LISTED, Skips
from feedstock._rows.stage import Stage
from feedstock.errors import ConfigError, FeedstockError

if TYPE_CHECKING:
    from feedstock._reports import Ledger, SkipReport

log = logging.getLogger("feedstock")

# Steps of a pipeline that change a sample. The others choose samples and their order.
_OF_SAMPLES = ("map", "views", "nulls", "options")

# Batches under way in a stage: 2, so that workers go on while the last rows of a batch are run; of small batches more.
_LEAST_BATCHES, _MOST_BATCHES = 2, 8

# In a mix without end, skipped samples are a share of this number more than were delivered, as in the library.
_ENDLESS_GRACE = 10_000

_Steps = Sequence[tuple[str, Mapping[str, Any]]]


class RowSteps:
    """The stages of a loader, in order.

    Args:
        functions: The functions.
        steps: The native steps of the pipeline.
        output: The form of batches that the loader was asked for.
        native: The native pipeline.
        world_size: Ranks.

    Raises:
        ConfigError: A function cannot be sent to processes, or ``output`` has no place for its results.
    """

    def __init__(
        self,
        functions: Sequence[RowFunction],
        steps: _Steps,
        output: str,
        native: _feedstock.Pipeline,
        world_size: int,
    ) -> None:
        if output == "batch":
            raise ConfigError(
                f'{functions[0].STEP} needs output="numpy" or "torch", whose batches have its results; a fs.Batch '
                '(output="batch") has the library\'s columns only'
            )
        self._steps, self._output = steps, output
        policy = _last(steps, "on_error") or {"policy": "raise", "max_fraction": 0.0}
        self.skips = Skips(policy["max_fraction"])
        skips = self.skips if policy["policy"] == "skip" else None
        rows = _rows_of(steps, world_size)
        self._functions = functions
        #: The stages that workers run, before ``stages``; see ``move_to_workers``.
        self.on_workers: list[Stage] = []
        self.stages: list[Stage] = []
        for number, function in enumerate(functions):
            workers = function.num_workers or native.threads or _feedstock.default_threads()
            batches = min(_MOST_BATCHES, max(_LEAST_BATCHES, 1 + -(-workers // rows)))
            kind = ItemStage if isinstance(function, ItemFunction) else Stage
            self.stages.append(kind(function, number, seed_of(steps), workers, batches, output, skips))
        first = self.stages[0]
        self._items = first if isinstance(first, ItemStage) else None
        self._native: _feedstock.Loader | None = None
        self._samples = 0

    @property
    def identities(self) -> list[list[str]]:
        """Names and versions of the functions, as a state keeps them."""
        return [list(function.identity) for function in self._functions]

    def rows_of(self, batch: _feedstock.Batch) -> Rows:
        """Returns a batch for the first stage, with the results of workers."""
        rows = Rows.of(batch, self._output)
        if self.on_workers:
            if self._items is not None:
                del rows.columns[INDEX]
            outputs = [stage.outputs or {} for stage in self.on_workers]
            add_results(rows, batch.results(), outputs, self._output)
        return rows

    def yielded(self, rows: Rows) -> Any:
        """Returns what the loader yields for a batch after the last stage."""
        return rows.columns if self._items is None else self._items.rebuilt(rows.columns)

    def deliver(self, place: tuple[int, int]) -> None:
        """Counts a batch before the caller gets it; SampleError if too many samples were skipped."""
        self.skips.deliver(place, self._planned)

    def call_of(self, stage: Stage) -> Callable[[Rows], Any]:
        """Returns what a thread runs for a stage; the last one returns what the loader yields."""
        if stage is not self.stages[-1]:
            return stage
        return lambda rows: self.yielded(stage(rows).substituted())

    def open(self, dataset: _feedstock.Dataset, native: _feedstock.Loader, probe: _Probe) -> None:
        """Finds dtypes and shapes of results that are not declared, by running the first sample of the data set.

        Args:
            dataset: The native data set.
            native: The native loader.
            probe: Applies the loader's device and threads to a native pipeline.

        Raises:
            ConfigError: Batches are not in host memory, a column does not exist, or a function fails.
        """
        if (place := native.place()) != "cpu":
            raise ConfigError(
                f"{self._functions[0].STEP} needs batches in host memory; they are on {place}. Leave out device=, "
                "and copy the columns that the model needs"
            )
        self._native, self._samples = native, dataset.samples()
        if not self.on_workers:
            self._find_outputs(dataset, probe)

    def move_to_workers(
        self, dataset: _feedstock.Dataset, native: _feedstock.Pipeline, probe: _Probe
    ) -> _feedstock.Pipeline:
        """Has workers make items and run functions of ``executor="worker"``, and returns the native pipeline with them.

        Args:
            dataset: The native data set.
            native: The native pipeline.
            probe: As for ``open``.

        Raises:
            ConfigError: They come after others, cannot be sent, or fail on the first sample.
        """
        remote = [stage for stage in self.stages if stage.function.is_for_workers]
        if not remote:
            return native
        if self.stages[: len(remote)] != remote:
            raise ConfigError(
                'map_rows with executor="worker" must come before those with another executor, which run after the '
                "rows of workers have arrived"
            )
        self._samples = dataset.samples()
        self._find_outputs(dataset, probe)
        for stage in remote:  # what ran the first sample
            stage.end()
            stage.join(0.0)
        self.on_workers, self.stages = remote, self.stages[len(remote) :]
        return native.functions(sent(remote))

    def _find_outputs(self, dataset: _feedstock.Dataset, probe: _Probe) -> None:
        self._check_inputs({name for name, _ in dataset.schema()})
        undeclared = [index for index, stage in enumerate(self.stages) if stage.outputs is None]
        if not undeclared:
            return
        items = self._items
        try:
            if items is not None:
                rows = items.attempt_some(self._first(dataset, probe, items.places(self._samples)))
                items.check_names_for(len(self.stages) - 1)
            else:
                rows = self.stages[0].attempt(self._first(dataset, probe, [0])[0])
            for stage in self.stages[1 : undeclared[-1] + 1]:
                rows = stage.attempt(rows)
        except BaseException:
            for stage in self.stages:
                stage.end()
            raise

    def _check_inputs(self, known: set[str]) -> None:
        """Finds misspelt names before anything runs."""
        known |= {arguments["output"] for method, arguments in self._steps if method == "map"}
        views = (arguments["views"] for method, arguments in self._steps if method == "views")
        known |= {name for one in views for name, *_ in one}
        for stage in self.stages:
            for name in stage.function.inputs or ():
                if name not in known and not name.endswith(("_length", "_mask")):
                    raise ConfigError(
                        f"inputs of {stage} must be columns ({', '.join(sorted(known))}); got {name!r}"
                    )
            if stage.outputs is None:
                return  # later steps may get any name
            known |= stage.outputs.keys()

    def _first(self, dataset: _feedstock.Dataset, probe: _Probe, places: Sequence[int]) -> list[Rows]:
        """Returns the samples at these places of the data set, as batches of one row."""
        step = self.stages[0].function.STEP
        pipeline = dataset.pipeline()
        for method, arguments in self._steps:
            if method in _OF_SAMPLES:
                pipeline = getattr(pipeline, method)(**arguments)
        pipeline = pipeline.seed(seed_of(self._steps)).batch(sizes=batch_sizes(batch_size=1), tail="drop")
        pipeline = pipeline.options(
            slots=pipeline.slots + len(places) - 1
        )  # the batches are held until all are there
        loader = probe(pipeline.epochs(1)).loader(0, 1)
        try:
            found = []
            for place in places:
                if place > 0:
                    loader.seek(0, place)
                batch = loader.next(1)
                if batch is None:
                    raise ConfigError(
                        f"{step} cannot find dtypes and shapes: the data set has no samples; pass outputs="
                    )
                found.append(self.rows_of(batch))
            return found
        except ConfigError:
            raise
        except FeedstockError as error:
            raise ConfigError(
                f"{step} cannot find dtypes and shapes of results, since the first sample failed; pass outputs=. "
                f"{error}"
            ) from error
        finally:
            loader.stop()

    def _planned(self, place: tuple[int, int]) -> int:
        """Returns the number of this rank's samples in an epoch."""
        assert self._native is not None
        epoch, position = place
        _, world_size, _ = self._native.share()
        if self._native.steps_in(epoch) is None:
            return position // world_size + _ENDLESS_GRACE
        return self._samples // world_size

    def report(self, report: SkipReport) -> SkipReport:
        """Adds samples that functions skipped to those that the library skipped."""
        listed = report["samples"]
        more = self.skips.listed[: max(0, LISTED - len(listed))]
        samples = [*listed, *({"sample_id": s, "epoch": e, "reason": why} for s, e, why in more)]
        return {"count": report["count"] + self.skips.count, "samples": samples}  # type: ignore[typeddict-item]

    def ledger(self, ledger: Ledger | None) -> Ledger | None:
        """Adds samples that functions skipped to the library's ledger."""
        if ledger is None:
            return None
        return {**ledger, "substituted": ledger["substituted"] + self.skips.substituted(ledger["epoch"])}


def row_steps(
    functions: Sequence[Any], steps: _Steps, output: str, native: _feedstock.Pipeline, world_size: int
) -> RowSteps | None:
    """Returns the stages for those of a pipeline's functions that are of rows; None if there are none."""
    found = [function for function in functions if isinstance(function, RowFunction)]
    return RowSteps(found, steps, output, native, world_size) if found else None


def ahead_of(functions: Sequence[Any], rows: RowSteps | None, convert: Callable[[Any], Any]) -> Ahead | None:
    """Returns what runs a pipeline's functions on batches: the stages of rows, then those of ``map_python``."""
    of_batches = functions_of(one for one in functions if not isinstance(one, RowFunction))
    if rows is None or not rows.stages:
        return Ahead(of_batches, convert) if of_batches else None
    of_rows = [Function(rows.call_of(stage), stage.batches, str(stage), stage) for stage in rows.stages]
    return Ahead([*of_rows, *of_batches], rows.rows_of, rows.deliver)


def compare(saved: Any, identities: list[list[str]]) -> None:
    """Logs a difference between a state's functions and a loader's. A state without functions has None."""
    if saved and saved != identities:
        log.warning(
            "the state was saved with these functions of map_rows: %s; now they are: %s. Results from here on are "
            "those of the functions now",
            _shown(saved),
            _shown(identities),
        )


_Probe = Callable[["_feedstock.Pipeline"], "_feedstock.Pipeline"]


def seed_of(steps: _Steps) -> int:
    """Returns the seed of the ops: that of ``seed``, else that of ``shuffle``, else 0."""
    chosen = _last(steps, "seed") or _last(steps, "shuffle") or {"seed": 0}
    return int(chosen["seed"])


def _last(steps: _Steps, method: str) -> Mapping[str, Any] | None:
    return next((arguments for name, arguments in reversed(steps) if name == method), None)


def _rows_of(steps: _Steps, world_size: int) -> int:
    """Returns about how many rows a batch has; 1 if a total bounds them."""
    sizes = (_last(steps, "batch") or {"sizes": batch_sizes(batch_size=1)})["sizes"]
    rows = sizes["batch_size"] or (sizes["global_batch_size"] or 1) / world_size
    return max(1, int(rows))


def _shown(identities: Any) -> str:
    return ", ".join(f"{name} (version {version!r})" for name, version in identities) or "none"
