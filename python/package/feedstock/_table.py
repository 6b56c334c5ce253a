"""Tables as text for terminals and as HTML for notebooks."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feedstock import _feedstock

# Rows that are shown of a longer table.
_SHOWN = 20

# Characters of a cell, so that tables of several columns fit a line.
_CELL = 40

# Encoded images in HTML: at most 8 MiB in all, since a notebook keeps them.
_IMAGE_BYTES = 8 << 20

# How encoded bytes begin: what browsers show, then others.
_IMAGES = ((b"\xff\xd8\xff", "jpeg"), (b"\x89PNG\r\n\x1a\n", "png"), (b"GIF8", "gif"))
_AUDIO = ((b"fLaC", "flac"), (b"OggS", "ogg"), (b"ID3", "mp3"), (b"\xff\xfb", "mp3"))

_STYLE = 'style="text-align:left;vertical-align:top"'


class Table:
    """The result of a query or of ``Dataset.head``: rows of named columns, undecoded.

    It prints as a table, and is one in notebooks. ``pyarrow.table(result)`` and ``polars.DataFrame(result)`` take it
    without a copy.
    """

    def __init__(
        self, native: _feedstock.Table, class_names: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self._native = native
        self._class_names = dict(class_names or {})

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self._native)

    @property
    def schema(self) -> dict[str, str]:
        """The names and Arrow types of the columns."""
        return dict(self._native.schema())

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows as dicts of ``str``, ``bytes``, ``bool``, ``int``, ``float``, lists and dicts of these.

        Dates and decimals are texts; missing values are None.

        Example:
            >>> counts = fs.Dataset(images).sql("select count(*) as samples, max(sample_id) as last from catalog")
            >>> counts.rows()
            [{'samples': 8, 'last': 7}]
        """
        return self._rows(len(self))

    def _rows(self, most: int) -> list[dict[str, Any]]:
        columns = self._native.columns(most)
        names = [name for name, _ in columns]
        return [
            dict(zip(names, row, strict=True)) for row in zip(*(values for _, values in columns), strict=True)
        ]

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._native.__arrow_c_stream__(requested_schema)

    def _cells(self) -> list[list[Any]]:
        """Returns the rows that are shown; labels with their class names."""
        return [
            [_named(value, self._class_names.get(name)) for name, value in row.items()]
            for row in self._rows(_SHOWN)
        ]

    def _rest(self) -> str:
        count = f"{len(self):,} row{'' if len(self) == 1 else 's'}"
        return count if len(self) <= _SHOWN else f"{count}, of which the first {_SHOWN} are shown"

    def __repr__(self) -> str:
        cells = [[shown(value) for value in row] for row in self._cells()]
        return f"{text(list(self.schema), cells)}\n{self._rest()}"

    def _repr_html_(self) -> str:
        left = _IMAGE_BYTES
        rows = []
        for row in self._cells():
            cells = []
            for value in row:
                image = as_image(value) if isinstance(value, bytes) and len(value) <= left else None
                left -= 0 if image is None else len(value)
                cells.append(html.escape(shown(value)) if image is None else image)
            rows.append(cells)
        return f"{as_html(list(self.schema), rows)}<p>{self._rest()}</p>"


class _Named(str):
    """A value that is shown whole: a label with its class name."""


def _named(value: Any, names: Sequence[str] | None) -> Any:
    if names is None or not isinstance(value, int) or not 0 <= value < len(names):
        return value
    return _Named(f"{value} ({names[value]})")


def class_of(value: Any, names: Sequence[str] | None) -> str:
    """Returns a label as text, with its class name if that is known: ``3 (tench)``."""
    return str(_named(value, names))


def shown(value: Any, most: int = _CELL) -> str:
    """Returns a value as the text of a cell, of one line and at most ``most`` characters."""
    if isinstance(value, _Named):
        return value
    if isinstance(value, bytes):
        kind = kind_of(value)
        return f"{'' if kind is None else kind.upper() + ', '}{size(len(value))}"
    line = " ".join(str(value).split()) if isinstance(value, str) else repr(value)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def size(count: int) -> str:
    """Returns a number of bytes with a unit: ``12.3 kB``."""
    value, unit = float(count), 0
    while value >= 999.5 and unit < 4:
        value, unit = value / 1000, unit + 1
    number = f"{count}" if unit == 0 else f"{value:.3g}"
    return f"{number} {('bytes', 'kB', 'MB', 'GB', 'TB')[unit]}"


def kind_of(encoded: bytes) -> str | None:
    """Returns the format of an encoded image or audio clip by its first bytes; None if it is another one."""
    if encoded[:4] == b"RIFF" and encoded[8:12] in (b"WEBP", b"WAVE"):
        return "webp" if encoded[8:12] == b"WEBP" else "wav"
    return next((kind for start, kind in (*_IMAGES, *_AUDIO) if encoded.startswith(start)), None)


def as_image(encoded: bytes) -> str | None:
    """Returns an HTML image of encoded bytes that browsers show; None for others."""
    kind = kind_of(encoded)
    if kind not in ("jpeg", "png", "gif", "webp"):
        return None
    return (
        f'<img style="max-height:14rem" src="data:image/{kind};base64,{base64.b64encode(encoded).decode()}">'
    )


def text(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table as lines of aligned columns. Columns of numbers are aligned to the right."""
    widths = [
        max(map(len, (name, *column))) for name, column in zip(names, _columns(names, rows), strict=True)
    ]
    right = [bool(column) and all(map(_is_number, column)) for column in _columns(names, rows)]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(cells, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(names), *(line(row) for row in rows)]) if names else ""


def _columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[row[index] for row in rows] for index in range(len(names))]


def _is_number(cell: str) -> bool:
    return cell.replace("-", "").replace(".", "").replace("e", "").isdigit() or cell in (
        "None",
        "nan",
        "inf",
        "-inf",
    )


def as_html(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table as HTML. Cells are HTML already, names are text."""
    head = "".join(f"<th {_STYLE}>{html.escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td {_STYLE}>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts_text(facts: Sequence[tuple[str, str]]) -> str:
    """Returns pairs of a name and a value as aligned lines. A name that repeats is shown once."""
    width = max((len(name) for name, _ in facts), default=0)
    names = ["" if index and facts[index - 1][0] == name else name for index, (name, _) in enumerate(facts)]
    return "\n".join(f"{name.ljust(width)}  {value}" for name, (_, value) in zip(names, facts, strict=True))


def facts_html(facts: Sequence[tuple[str, str]]) -> str:
    """Returns pairs of a name and a value as an HTML table without a head."""
    rows = (
        f"<tr><th {_STYLE}>{html.escape(name)}</th><td {_STYLE}>{html.escape(value)}</td></tr>"
        for name, value in facts
    )
    return f"<table>{''.join(rows)}</table>"
