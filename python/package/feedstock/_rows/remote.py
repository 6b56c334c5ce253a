"""Functions of rows on a worker. ``python/src/functions.rs`` calls it.

    rank: sent() ──JSON in the recipe──▶ worker: load() ──▶ Functions.lane() of each stream ──▶ Lane.run() of each step

A worker runs functions in the same processes as a rank, with the same rows and generators: results have the same bytes.
"""

from __future__ import annotations

import base64
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from feedstock._rows.columns import Rows, spread
from feedstock._rows.function import ItemFunction, RowFunction
from feedstock._rows.items import INDEX
from feedstock._rows.job import Asker, ClosedError
from feedstock._rows.limits import Limits
from feedstock._rows.processes import Processes
from feedstock._rows.sent import gathered, lengths_of, packed, unpacked, with_lengths, without_lengths
from feedstock._rows.spec import ItemSpec, SentSpec, Spec, TensorSpec
from feedstock.errors import ConfigError, RetryableError

if TYPE_CHECKING:
    from feedstock._rows.stage import Stage

# All functions of a pipeline, pickled. A recipe has at most 16 MiB, and Base64 takes 4 bytes for 3.
_MOST_CODE_BYTES = 8 << 20

# Batches whose memory is kept: a worker has at least two streams for each rank, with two steps each.
_BATCHES = 4

# What functions must not read: with the token, other programs could use the workers.
_SECRETS = ("FEEDSTOCK_TOKEN",)

#: A result: the bytes of all rows, and if they may differ the number of bytes of each.
_Result = tuple[bytes, list[int]]

#: A mapped column: name, dtype, shape of a row, ragged axis, lengths, and the bytes of the rows one after another.
_Tensor = tuple[str, str, Sequence[int], "int | None", Sequence[int], bytearray]


def interpreter() -> str:
    """Returns what code and bytes depend on.

    Other versions of Python cannot read the byte code that cloudpickle writes. Others of NumPy may draw other numbers,
    and pickle arrays in another way.
    """
    python = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
    return f"{python}, numpy {'.'.join(np.__version__.split('.')[:2])}"


def sent(stages: Sequence[Stage]) -> str:
    """Returns the description of functions for workers, as JSON. Their ``outputs`` must be known.

    Raises:
        ConfigError: The functions are too large to send, or a result has no bytes.
    """
    size = sum(len(stage.code) for stage in stages)
    if size > _MOST_CODE_BYTES:
        largest = max(stages, key=lambda stage: len(stage.code))
        raise ConfigError(
            f"{', '.join(map(str, stages))}: the pickled functions have {size} bytes, and workers take at most "
            f"{_MOST_CODE_BYTES}. {largest.function.LARGE}"
        )
    return json.dumps({"interpreter": interpreter(), "steps": [_step(stage) for stage in stages]})


def _step(stage: Stage) -> dict[str, Any]:
    function, outputs = stage.function, stage.outputs
    assert outputs is not None
    for name, spec in outputs.items():
        if isinstance(spec, TensorSpec) and spec.row_bytes == 0:
            raise ConfigError(
                f"{stage}: workers cannot send the result {name!r} ({spec}), which has no bytes"
            )
    return {
        "kind": function.STEP,
        "name": function.name,
        "version": function.version,
        "inputs": None if function.inputs is None else list(function.inputs),
        "outputs": [_output(name, spec) for name, spec in with_lengths(outputs).items()],
        "processes": function.num_workers,
        "timeout": function.timeout,
        "code": base64.b64encode(stage.code).decode(),
    }


def _output(name: str, spec: Spec) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": name,
        "dtype": spec.dtype,
        "shape": [size or 0 for size in spec.shape],
    }
    if isinstance(spec, TensorSpec):
        return {**described, "bytes": spec.row_bytes}
    return {**described, "bytes": None, "axis": spec.axis}


def _spec(described: Mapping[str, Any], kind: type[TensorSpec]) -> Spec:
    """Returns what ``_output`` describes."""
    dtype, shape, axis = described["dtype"], described["shape"], described.get("axis")
    if described["bytes"] is not None:
        return kind(dtype, tuple(shape))
    return SentSpec(dtype, tuple(None if at == axis else size for at, size in enumerate(shape)))


def add_results(
    rows: Rows, results: Mapping[str, Any], outputs: Sequence[Mapping[str, Spec]], output: str
) -> None:
    """Adds the results that came with a batch to its columns.

    Args:
        rows: The batch.
        results: By name: the bytes of all rows, or of each row if their lengths differ.
        outputs: What each function returns.
        output: The form of the batch.
    """
    specs: dict[str, Spec] = {}
    for one in outputs:
        specs.update(with_lengths(one))
    count = len(rows.ids)
    values: dict[int, dict[str, Any]] = {row: {} for row in range(count)}
    arrays = {}
    for name, spec in specs.items():
        if isinstance(spec, TensorSpec):
            arrays[name] = np.frombuffer(results[name], spec.dtype).reshape(count, *spec.shape)
            continue
        for row, data in enumerate(results[name]):
            values[row][name] = unpacked(name, spec, data)
    padded = gathered(specs, values, count)
    rows.replace(arrays | {name: value for name, value in padded.items() if name not in arrays}, output)
    rows.lengths.update(lengths_of(specs, padded))


@dataclass(frozen=True)
class _Step:
    name: str
    inputs: list[str] | None
    outputs: dict[str, Spec]
    processes: Processes
    is_of_items: bool

    def results(self, made: Mapping[str, Any], places: Sequence[int], rows: int) -> dict[str, _Result]:
        """Returns what is sent of results: of ``rows`` rows, those at ``places`` have them."""
        results: dict[str, _Result] = {}
        for name, spec in with_lengths(self.outputs).items():
            if isinstance(spec, TensorSpec):
                array = made[name] if len(places) == rows else spread(made[name], places, rows)
                results[name] = (array.tobytes(), [])
                continue
            values = packed(name, spec, made)
            lengths = [0] * rows
            for row, value in zip(places, values, strict=True):
                lengths[row] = len(value)
            results[name] = (b"".join(values), lengths)
        return results


def load(spec: str, seed: int, threads: int, memory_bytes: int | None) -> Functions:
    """Loads functions that a rank described, each in one process.

    Args:
        spec: The description, as JSON.
        seed: The seed of the ops.
        threads: Processes of a function that names no number.
        memory_bytes: What each process may allocate; None: this is a rank, whose processes have no limits.

    Raises:
        ConfigError: A function cannot be loaded here, or is of another version of Python or NumPy.
        RetryableError: This machine has no memory or processes left for it.
    """
    described = json.loads(spec)
    if described["interpreter"] != interpreter():
        names = ", ".join(map(_name, described["steps"]))
        raise ConfigError(
            f"{names} comes from {described['interpreter']}, and this worker ({platform.node()}) has {interpreter()}; "
            "run the same versions of Python and NumPy on ranks and workers"
        )
    limits = None if memory_bytes is None else Limits(memory_bytes, _SECRETS)
    steps = []
    for number, step in enumerate(described["steps"]):
        name, is_of_items = _name(step), _kind(step) == ItemFunction.STEP
        processes = Processes(
            name,
            base64.b64decode(step["code"]),
            seed,
            number,
            step["processes"] or threads,
            step["timeout"],
            _BATCHES,
            limits,
        )
        kind = ItemSpec if is_of_items else TensorSpec
        outputs = without_lengths({one["name"]: _spec(one, kind) for one in step["outputs"]})
        steps.append(_Step(name, step["inputs"], outputs, processes, is_of_items))
    functions = Functions(steps)
    try:
        for one in steps:
            one.processes.start_one()
    except (OSError, MemoryError) as error:
        functions.stop()
        raise _lacking(steps, error) from error
    except BaseException:
        functions.stop()
        raise
    return functions


def _kind(step: Mapping[str, Any]) -> str:
    return str(step.get("kind", RowFunction.STEP))


def _name(step: Mapping[str, Any]) -> str:
    return f"{_kind(step)}({step['name']})"


def _lacking(steps: Sequence[_Step], error: OSError | MemoryError) -> RetryableError:
    """Returns the error of a machine that lacks something; another one may have it."""
    names = ", ".join(step.name for step in steps)
    return RetryableError(f"the worker {platform.node()} cannot run {names}: {type(error).__name__}: {error}")


class Functions:
    """Functions in processes. Threads may share it."""

    def __init__(self, steps: Sequence[_Step]) -> None:
        self._steps = steps

    def lane(self) -> Lane:
        """Returns what runs the rows of one stream."""
        return Lane(self._steps)

    def stop(self) -> None:
        """Ends the processes; rows under way are given up."""
        for step in self._steps:
            step.processes.end()


class Lane:
    """Runs the rows of one stream, some batches at a time. Threads may share it."""

    def __init__(self, steps: Sequence[_Step]) -> None:
        self._steps = steps
        self._asker = Asker()

    def run(
        self, epoch: int, ids: Sequence[int], tensors: Sequence[_Tensor], columns: dict[str, Any]
    ) -> tuple[list[_Result], list[tuple[int, str]]]:
        """Runs the functions on rows.

        Args:
            epoch: The epoch.
            ids: The rows' samples.
            tensors: The mapped columns.
            columns: The other columns: arrays and lists.

        Returns:
            Each result, of all rows; and the rows without a result, with the reason.

        Raises:
            RetryableError: The functions were stopped, the rows were given up, or this machine lacks something.
        """
        rows = _rows(epoch, ids, tensors, columns)
        left = list(range(len(ids)))  # rows that have not failed
        failures: list[tuple[int, str]] = []
        results: dict[str, _Result] = {}
        steps = self._steps
        try:
            if not steps:
                raise ClosedError  # given up
            for step in steps:
                made, failed = step.processes.run(
                    rows.inputs(step.inputs, step.name), rows.ids, epoch, step.outputs, self._asker
                )
                results.update(step.results(made, left, len(ids)))
                if step.is_of_items:
                    del rows.columns[INDEX]
                rows.replace(made, "numpy")
                rows.lengths.update(lengths_of(step.outputs, made))
                if failed:
                    failures += [(left[row], f"{step.name} {reason}") for row, reason in failed.items()]
                    good = [row for row in range(len(left)) if row not in failed]
                    rows, left = rows.only(good), [left[row] for row in good]
        except ClosedError:
            raise RetryableError("the worker has given up these rows; ask another one") from None
        except (OSError, MemoryError) as error:
            raise _lacking(steps, error) from error
        return list(results.values()), sorted(failures)

    def give_up(self) -> None:
        """Ends calls that are under way. Rows that run have 2 s to end before their process is killed."""
        self._asker.give_up()
        self._steps = ()


def _rows(epoch: int, ids: Sequence[int], tensors: Sequence[_Tensor], columns: dict[str, Any]) -> Rows:
    """Returns rows as ``Rows.of`` does on the rank: rows of several lengths are padded and have their lengths."""
    rows = Rows({}, epoch, 0, list(ids))
    of_lengths: dict[str, Any] = {}
    for name, dtype, shape, axis, lengths, data in tensors:
        flat = np.frombuffer(data, dtype)
        if axis is None:
            rows.columns[name] = flat.reshape(len(ids), *shape)
            continue
        rows.columns[name] = _padded(flat, shape, axis, lengths)
        rows.lengths[name] = (axis, lengths)
        of_lengths[f"{name}_length"] = np.array(lengths, np.int64)
    rows.columns.update(columns)
    rows.columns.update(of_lengths)
    return rows


def _padded(
    flat: np.ndarray[Any, Any], shape: Sequence[int], axis: int, lengths: Sequence[int]
) -> np.ndarray[Any, Any]:
    sizes = [max(lengths, default=0) if at == axis else size for at, size in enumerate(shape)]
    padded = np.zeros((len(lengths), *sizes), flat.dtype)
    begin = 0
    for row, length in enumerate(lengths):
        one = [length if at == axis else size for at, size in enumerate(shape)]
        end = begin + int(np.prod(one, dtype=np.int64))
        place: tuple[Any, ...] = (row, *(slice(size) for size in one))
        padded[place] = flat[begin:end].reshape(one)
        begin = end
    return padded
