"""Files in the cache that are named by their content. The processes of a machine share them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

#: Files that no process has opened for this long are removed when another one is written: 30 days.
KEPT_SECONDS = 30 * 24 * 3600.0

# What a killed process was writing is removed after a day.
_UNFINISHED_SECONDS = 24 * 3600.0
_UNFINISHED = ".writing-"


class Place:
    """The folder where files are stored.

    Args:
        folder: The caller's folder, in which nothing is ever removed. None: ``$FEEDSTOCK_CACHE/sources``, else
            ``~/.cache/feedstock/sources`` (in ``$XDG_CACHE_HOME`` if that is set).
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._is_own = folder is None
        self.path = _home() / "sources" if folder is None else Path(os.path.abspath(folder))

    def find(self, name: str) -> Path | None:
        """Returns a stored file or folder, and notes that it is in use; None if it is not there."""
        path = self.path / name
        if not path.exists():
            return None
        with contextlib.suppress(OSError):  # another user's folder
            # Not the time of the change, by which a reader of the file knows that it is the same.
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        return path

    def add(self, write: Callable[[Path], str]) -> Path:
        """Stores what ``write`` writes to the path that it gets, by the name that it returns. What is there stays."""
        self.path.mkdir(mode=0o700 if self._is_own else 0o777, parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self.path))
        try:
            name = write(unfinished / "new")
            if (there := self.find(name)) is None:
                there = self.path / name
                _move(unfinished / "new", there)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        if self._is_own:
            self._remove_old(there)
        return there

    def _remove_old(self, but: Path) -> None:
        now = time.time()
        for path in self.path.iterdir():
            if path == but:
                continue
            most = _UNFINISHED_SECONDS if path.name.startswith(_UNFINISHED) else KEPT_SECONDS
            with contextlib.suppress(OSError):  # removed by another process
                stat = path.stat()
                if now - max(stat.st_atime, stat.st_mtime) > most:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _move(new: Path, there: Path) -> None:
    """Gives a file or folder its name, unless another process has done so meanwhile: its file may be in use."""
    try:
        if new.is_dir():
            os.rename(new, there)
        else:
            os.link(new, there)
    except FileExistsError:
        return
    except OSError:
        if not there.exists():  # folders that are there; file systems without links
            os.rename(new, there)


def _home() -> Path:
    if home := os.environ.get("FEEDSTOCK_CACHE"):
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "feedstock"
