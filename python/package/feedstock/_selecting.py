"""Selecting samples of a data set, drawing them by weight, and making columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from feedstock._check import number, sample_ids, text, whole, whole_or_none
from feedstock.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

    from feedstock import _feedstock
    from feedstock._rows.function import ItemFunction


class Selecting:
    """The part of a data set that selects its samples and makes columns."""

    _native: _feedstock.Dataset
    #: What pipelines begin with: the function that makes the items of ``from_torch``.
    _functions: tuple[ItemFunction, ...] = ()

    @classmethod
    def _made(cls, native: _feedstock.Dataset, recipe: tuple[Any, ...]) -> Self:
        raise NotImplementedError

    def filter(self, sql: str) -> Self:
        """Keeps the samples for which an SQL expression over the catalog's columns is true.

        Successive filters are combined with AND.

        Args:
            sql: For example ``"label < 100"`` or ``"duration < 20 and locale = 'de'"``.

        Raises:
            ConfigError: The expression is not valid.
        """
        return self._made(self._native.filter(text("sql", sql)), ("filter", self, sql))

    def take(self, n: int) -> Self:
        """Keeps the first ``n`` of the selected samples, in catalog order, or all of them if there are fewer.

        Calls apply in their sequence: ``filter(…).take(100)`` has the first 100 samples that the filter keeps, and
        ``take(100).filter(…)`` those of the first 100 samples that the filter keeps. The catalog's order is that of
        the files by name, before any shuffle; for a random part, use ``split_by`` on a key.

        Args:
            n: Samples, at least 1.

        Raises:
            ConfigError: ``n`` is below 1, or the data set is a mix: take from its parts.

        Example:
            >>> data = fs.Dataset(images)
            >>> len(data.take(3)), len(data.skip(3)), len(data.take(1000))
            (3, 5, 8)
        """
        n = whole("n", n, 1)
        return self._made(self._native.take(n), ("take", self, n))

    def skip(self, n: int) -> Self:
        """Leaves out the first ``n`` of the selected samples, in catalog order; see ``take``.

        Args:
            n: Samples, at least 0.

        Raises:
            ConfigError: No sample is left, or the data set is a mix.
        """
        n = whole("n", n)
        return self._made(self._native.skip(n), ("skip", self, n))

    def select(self, ids: Iterable[int]) -> Self:
        """Keeps the samples with these ids.

        A sample's id is its place in the catalog: ``batch.sample_ids``, and ``sample_id`` in SQL and in
        ``loader.skip_report()``. Data sets with other files have other ids. In a mix or a
        concatenation, ids continue from part to part.

        Args:
            ids: Different integers, in any sequence: a list, a set, an array. Their sequence has no effect.

        Raises:
            ConfigError: No ids, an id that is listed twice or does not exist, or one that an earlier step left out.

        Example:
            >>> data = fs.Dataset(images)
            >>> batch = next(iter(data.select([7, 2]).batch(2).loader()))
            >>> batch.sample_ids.tolist()
            [2, 7]
        """
        chosen = sample_ids("ids", ids)
        return self._made(self._native.select(chosen.tobytes()), ("select", self, chosen))

    def split_by(self, key: str, shares: Mapping[str, float], seed: int = 0) -> dict[str, Self]:
        """Splits the selected samples by a key, so that samples with equal keys are in the same part.

        A hash of the key and the seed decides. A sample stays in its part when files are added or removed, and when
        the data are stored in another layout. Shares are those of the keys: with few keys, or keys of different
        frequency, the samples' shares differ. Samples whose key is null are all in the first part.

        Each part is the data set with a filter, such as ``"feedstock_split(speaker, 0) < 0.9"``.
        For texts and integers, ``feedstock_split(key, seed)`` is
        ``(xxhash.xxh64_intdigest(str(key).encode(), seed) >> 11) / 2**53``.

        Args:
            key: A column of texts, integers, flags or bytes, or an SQL expression with such values:
                ``"split_part(path, '/', 1)"``. It must not use ``sample_id``, which changes when files are added.
            shares: The share of each part, above 0, by its name. They must sum to 1. In another sequence, parts have
                other samples.
            seed: At least 0; default 0. Another seed is another split.

        Raises:
            ConfigError: The key or a share is not valid, shares do not sum to 1, or a part has no samples.

        Example:
            >>> parts = fs.Dataset(images).split_by("label", {"train": 0.75, "val": 0.25}, seed=3)
            >>> list(parts), len(parts["train"]) + len(parts["val"])
            (['train', 'val'], 8)
        """
        if not isinstance(shares, Mapping):
            raise ConfigError(f"shares must be a dict of shares by name; got {shares!r}")
        named = [
            (text("a name in shares", name), number(f"the share of {name!r}", share))
            for name, share in shares.items()
        ]
        key, seed = text("key", key), whole("seed", seed)
        parts = self._native.split_by(key, named, seed)
        return {name: self._made(part, ("part", self, key, named, seed, name)) for name, part in parts}

    def weights(self, column: str, samples: int | None = None) -> Self:
        """Draws each of the N selected samples floor(M * w / W) times an epoch, or once more.

        w is its weight, W the sum of all weights, and M is ``samples``. The draws are spread evenly over the weights in
        catalog order, the same in each epoch. So a sample with less than one draw may never be drawn; with a larger
        ``samples`` it is. Weight 0 is never drawn. Each draw of a sample has separate random numbers in ops, and
        ``shuffle`` separates the draws. ``len`` of the result is M.

        Weights are the last step of a selection: call ``filter``, ``take`` and the like before.

        Args:
            column: A numeric column, or an SQL expression: ``"case when label = 3 then 5 else 1 end"``.
            samples: M, the samples of an epoch, at least 1; default N.

        Raises:
            ConfigError: A weight is null, NaN, infinite or negative (the message names the sample), all are 0, or the
                data set is a mix, whose parts have weights already.

        Example:
            >>> data = fs.Dataset(images).weights("case when label = 0 then 0 else 1 end", samples=21)
            >>> len(data), len(fs.Dataset(images).weights("label >= 0"))
            (21, 8)
        """
        samples = whole_or_none("samples", samples, 1)
        return self._made(
            self._native.weights(text("column", column), samples), ("weights", self, column, samples)
        )

    def balanced(self, column: str) -> Self:
        """Draws samples so that an epoch has each class as often as the largest class has samples.

        Each sample of the largest class, of n samples, is drawn once an epoch, and each of a class of m samples
        floor(n / m) times or once more. Otherwise as ``weights``.

        Args:
            column: A column of texts, integers or flags, or an SQL expression with such values.

        Raises:
            ConfigError: The class of a sample is null (the message names it), or the data set is a mix.
        """
        return self._made(self._native.balanced(text("column", column)), ("balanced", self, column))

    def with_column(self, name: str, sql: str) -> Self:
        """Adds a column whose values are those of an SQL expression over the catalog's columns.

        Later calls (``filter``, ``split_by``, ``weights``, ``join``), ``sql`` and ``bucket_by`` can use it, and
        batches have it. The expression is evaluated once for each sample, now and whenever a process opens the data
        set: integers take 8 bytes a sample in memory. An expression over encoded samples, such as
        ``"image_width(image)"``, reads all of them.

        Args:
            name: The column's name. No column has it yet.
            sql: For example ``"length(sentence)"`` or ``"case when duration > 10 then 'long' else 'short' end"``. Names
                without quotation marks are read in lower case.

        Raises:
            ConfigError: The name is taken, or the expression is not valid, has a query, an aggregate or a window
                function, or depends on chance or the clock (``random()``, ``now()``).

        Example:
            >>> data = fs.Dataset(images).with_column("twice", "2 * label")
            >>> len(data.filter("twice = label + label")), data.schema["twice"]
            (8, 'Int64')
        """
        name, sql = text("name", name), text("sql", sql)
        return self._made(self._native.with_column(name, sql), ("with_column", self, name, sql))

    def rename(self, names: Mapping[str, str]) -> Self:
        """Gives columns other names, all at once; columns of encoded samples, too.

        Earlier filters keep their effect. Later expressions, ``map`` and batches use the new names.

        Args:
            names: The new name of each column, by its old name.

        Raises:
            ConfigError: No names, an unknown column, or a new name that another column has.

        Example:
            >>> data = fs.Dataset(images).rename({"image": "photo", "label": "target"})
            >>> "photo" in data.schema, "image" in data.schema
            (True, False)
        """
        if not isinstance(names, Mapping):
            raise ConfigError(f"names must be a dict of new names by old names; got {names!r}")
        pairs = [
            (text("a name in names", old), text(f"the name of {old!r}", new)) for old, new in names.items()
        ]
        return self._made(self._native.rename(pairs), ("rename", self, dict(pairs)))

    def join(self, other: Selecting, on: str | Mapping[str, str]) -> Self:
        """Adds the metadata columns of another data set where its keys are equal to keys of this one (a left join).

        Like ``pandas.merge(how="left", validate="many_to_one")``. No sample is left out or repeated: one whose key is
        not in ``other``, or is null, has None in the new columns. They are the chosen columns of ``other`` except its
        keys and its encoded samples. Selections of ``other`` apply. Keys and columns are read now, and whenever a
        process opens the data set; a worker for which ``other`` has other values is refused.

        Args:
            other: A data set in any layout, such as a Parquet file of ratings.
            on: The column of keys, if both data sets have the same name for it, else ``{"here": "there"}``; several
                pairs are compared together. Keys are texts, integers or flags.

        Raises:
            ConfigError: A key occurs twice in ``other`` (the message names it), types of keys differ, both data sets
                have a column of the same name (``rename`` it in one of them), or one of them is of ``from_torch``.

        Example:
            >>> data = fs.Dataset(images)
            >>> facts = data.take(3).with_column("half", "label / 2").columns(["image_path", "half"])
            >>> joined = data.join(facts, on="image_path")
            >>> len(joined), len(joined.filter("half is null"))
            (8, 5)
        """
        if not isinstance(other, Selecting):
            raise ConfigError(f"other must be a data set; got {type(other).__name__}")
        if isinstance(on, str):
            keys = [(on, on)]
        elif isinstance(on, Mapping):
            keys = [
                (text("a name in on", here), text(f"the key for {here!r}", there))
                for here, there in on.items()
            ]
        else:
            raise ConfigError(f"on must be the name of a column or a dict of names; got {on!r}")
        for side in (self, other):
            if side._functions:
                raise ConfigError(
                    f"join reads stored columns, and those of {side._functions[0]} are made by its Python: return "
                    "the other columns from its __getitem__"
                )
        return self._made(self._native.join(other._native, keys), ("join", self, other, dict(keys)))
