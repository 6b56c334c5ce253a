"""Looking at single samples of a data set, undecoded."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, SupportsIndex

from feedstock._check import text, whole
from feedstock._table import Table, facts_html, shown
from feedstock.errors import ConfigError

if TYPE_CHECKING:
    from feedstock import _feedstock


class Looking:
    """The part of a data set that shows its samples."""

    _native: _feedstock.Dataset

    #: Without it, Python would iterate by number: a read for each sample. ``batch(…).loader()`` iterates.
    __iter__: None = None

    def head(self, n: int = 5) -> Table:
        """Reads the first ``n`` selected samples, in catalog order, undecoded.

        Args:
            n: Samples to read, at least 0; default 5. A data set of fewer has fewer rows.

        Returns:
            A table of ``sample_id`` and the columns. It prints, shows images in notebooks, and goes to
            ``pyarrow.table`` and ``polars.DataFrame``.

        Raises:
            FeedstockError: The storage failed, or an object has changed.

        Example:
            >>> fs.Dataset(images, columns=["label"]).head(2)
            sample_id  label
                    0  ...
                    1  ...
            2 rows
        """
        names = {
            name: names for name, _ in self._native.schema() if (names := self._native.class_names(name))
        }
        return Table(self._native.rows(0, whole("n", n)), names)

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        """Reads the selected sample with this number, in catalog order, undecoded.

        Each call reads from the storage; ``batch(…).loader()`` reads many samples.

        Args:
            index: 0 to ``len(dataset) - 1``; negative numbers count from the end.

        Returns:
            A dict of ``sample_id`` and the columns: encoded bytes as ``bytes``, and ``str``, ``int``, ``float``,
            ``bool``, lists, dicts, or None.

        Raises:
            IndexError: The index is out of range.
            TypeError: The index is a slice, or not an integer.
        """
        if isinstance(index, slice):
            raise TypeError(
                f"a data set takes the number of one sample; got {index!r}. head(n) reads the first samples, and "
                "skip(n) and take(n) select samples"
            )
        try:
            number = operator.index(index)
        except TypeError:
            raise TypeError(f"a data set takes the number of a sample; got {index!r}") from None
        samples = self._native.samples()
        at = number + samples if number < 0 else number
        if not 0 <= at < samples:
            raise IndexError(f"there is no sample {number}: numbers are {-samples} to {samples - 1}")
        return Table(self._native.rows(at, at + 1)).rows()[0]

    def class_names(self, column: str) -> list[str] | None:
        """Returns the names of the classes that a column of labels numbers, if the data set states them.

        They are the names of class folders, synsets of ILSVRC tars, and the ``ClassLabel`` of Hugging Face files.

        Args:
            column: A column of integers, such as ``"label"``.

        Returns:
            The names by label; None if the data set has none for this column.

        Raises:
            ConfigError: The column does not exist.

        Example:
            >>> names = fs.Dataset(images).class_names("label")
            >>> names[fs.Dataset(images)[0]["label"]].startswith("n")
            True
        """
        columns = [name for name, _ in self._native.schema()]
        if text("column", column) not in columns:
            raise ConfigError(f"column must be one of {', '.join(columns)}; got {column!r}")
        return self._native.class_names(column)

    def _repr_html_(self) -> str:
        filters = self._native.filter_sql()
        facts = [("data set", self._native.uri()), ("layout", self._native.layout())]
        facts += [("samples", f"{self._native.samples():,}")]
        facts += [] if filters is None else [("selection", shown(filters, 200))]
        for name, kind in self._native.schema():
            names = self._native.class_names(name)
            facts.append(("columns", f"{name}: {kind}" + (f", {len(names)} classes" if names else "")))
        return facts_html(facts)
