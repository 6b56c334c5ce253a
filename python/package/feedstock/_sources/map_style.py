"""Map-style data sets of torch: ``fs.from_torch``."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from feedstock import _feedstock
from feedstock._check import column_names, text, whole_or_none
from feedstock._dataset import Dataset
from feedstock._rows.function import ItemFunction
from feedstock._rows.items import INDEX, Items
from feedstock._rows.spec import check_name
from feedstock.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

    from feedstock._pipeline import Pipeline

log = logging.getLogger("feedstock")


class ItemBatch(Protocol):
    """A batch in the structure of the items, for type checkers: a tuple or a dict."""

    def __getitem__(self, key: Any) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...


class MapStyle(Dataset):
    """A data set of indexes, whose pipelines begin with the function that makes the items."""

    @classmethod
    def _made(cls, native: _feedstock.Dataset, recipe: tuple[Any, ...]) -> Self:
        dataset = super()._made(native, recipe)
        dataset._functions = recipe[1]._functions  # of the data set that a selection was made from
        return dataset

    if TYPE_CHECKING:  # batches have the structure of the items

        def shuffle(self, *args: Any, **keywords: Any) -> Pipeline[ItemBatch]: ...  # type: ignore[override]

        def batch(self, *args: Any, **keywords: Any) -> Pipeline[ItemBatch]: ...  # type: ignore[override]

        def pipeline(self) -> Pipeline[ItemBatch]: ...  # type: ignore[override]

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        step, *given = self._recipe
        return (_again, tuple(given)) if step == "from_torch" else super().__reduce__()

    def columns(self, names: Sequence[str]) -> Dataset:
        """Raises ConfigError: the data set itself chooses what its items have."""
        raise ConfigError(
            "columns chooses stored columns, and items of from_torch are not stored; leave out what you do not need in "
            "__getitem__, or by map_rows"
        )

    def rename(self, names: Mapping[str, str]) -> Self:
        """Raises ConfigError: the data set itself names what its items have."""
        raise ConfigError(
            "rename names stored columns, and items of from_torch are not stored; rename their keys in __getitem__, or "
            "name the elements of tuples by columns="
        )

    def __repr__(self) -> str:
        (function,) = self._functions
        return f"{function}, {len(self)} samples"


def from_torch(
    dataset: Any,
    *,
    identity: str | None = None,
    columns: Iterable[str] | None = None,
    num_workers: int | None = None,
) -> MapStyle:
    """Opens a map-style data set of torch: its ``__getitem__`` runs in processes of each rank, or of workers.

    Order, exactly-once delivery, saved positions and any world size are those of every data set. Batches have the
    structure of the items: a tuple of columns for tuples, a dict with ``sample_ids`` and ``valid`` for dicts. Loaders
    need ``output="torch"`` or ``"numpy"`` and host memory.

    Before each item, ``random``, ``numpy.random`` and ``torch`` are seeded from seed, epoch and sample, and so are the
    compositions and transforms of albumentations among the data set's attributes. Random augmentation is therefore the
    same for any number of ranks and processes, and after a resume.

    With ``workers=``, workers that allow code make the items. Files that ``__getitem__`` opens must be at the same
    paths there.

    Items have numbers, flags, arrays, tensors, Pillow images, texts and bytes. Values need one dtype and shape. One
    axis may have several lengths: it is padded with 0, and ``<name>_length`` has the lengths. See
    ``docs/python/sources.md``.

    Args:
        dataset: An object with ``__len__`` and ``__getitem__``, picklable by cloudpickle. ``__getitems__`` is used if
            there is one, with one index at a time.
        identity: Names the contents, such as a version. Saved positions load only into a data set of the same class
            name, length and identity; the contents are not read. Default: none.
        columns: Names the elements of items that are tuples, so that batches are dicts. Default: batches are tuples.
        num_workers: Processes of each loader, or of each worker; default: the CPU threads of the pipeline (see
            ``Pipeline.options``), or the worker's threads.

    Raises:
        ConfigError: ``dataset`` has no length or no ``__getitem__``, is iterable-style or empty, or an argument is not
            valid. Items are checked when a loader is made.

    Example:
        >>> class Squares:
        ...     def __len__(self):
        ...         return 6
        ...     def __getitem__(self, index):
        ...         return index, float(index**2)
        >>> pipeline = fs.from_torch(Squares(), num_workers=1).shuffle(seed=7).batch(6)
        >>> with pipeline.loader(output="numpy") as loader:
        ...     numbers, squares = next(iter(loader))
        >>> sorted(numbers.tolist()), bool((numbers**2 == squares).all())
        ([0, 1, 2, 3, 4, 5], True)
    """
    length = _length(dataset)
    names = None if columns is None else _names(columns)
    version = "" if identity is None else text("identity", identity)
    function = ItemFunction(
        Items(dataset, names),
        (INDEX,),
        None,
        "process",
        whole_or_none("num_workers", num_workers, 1),
        None,
        version,
    )
    opened = MapStyle(_indexes(function.name, length, version), layout="ipc", progress=False)
    opened._functions = (function,)
    opened._recipe = ("from_torch", dataset, identity, names, num_workers)
    log.log(
        logging.WARNING if identity is None else logging.INFO,
        "%s of %d items is identified by its class name, its length and identity=%r. Its contents are not verified: "
        "change identity= when they change",
        function,
        length,
        identity,
    )
    return opened


def _again(
    dataset: Any, identity: str | None, columns: list[str] | None, num_workers: int | None
) -> MapStyle:
    return from_torch(dataset, identity=identity, columns=columns, num_workers=num_workers)


def _length(dataset: Any) -> int:
    torch: Any = sys.modules.get("torch.utils.data")
    if torch is not None and isinstance(dataset, torch.IterableDataset):
        raise ConfigError(
            f"from_torch takes map-style data sets, whose items have indexes; {type(dataset).__qualname__} is an "
            "IterableDataset. Give it __getitem__ and __len__, or open its files by fs.Dataset"
        )
    if isinstance(dataset, Dataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ConfigError(
            f"from_torch takes objects with __len__ and __getitem__; got {type(dataset).__qualname__}"
        )
    try:
        length = len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise ConfigError(f"the length of {type(dataset).__qualname__} is not known: {error}") from error
    if length == 0:
        raise ConfigError(f"{type(dataset).__qualname__} has no items: the data set is empty")
    return length


def _names(columns: Iterable[str]) -> list[str]:
    names = column_names("columns", columns)
    if not names or not all(names) or len(set(names)) < len(names):
        raise ConfigError(f"columns must be different, non-empty names; got {names!r}")
    for name in names:
        check_name(name)
    return names


def _indexes(name: str, length: int, identity: str) -> str:
    """Returns the URI of the indexes, which are computed. Identity follows from its last part."""
    described = json.dumps([name, length, identity]).encode()
    digest = hashlib.blake2b(described, digest_size=16).hexdigest()
    return f"indexes://{length}/items-{digest}.arrow"
