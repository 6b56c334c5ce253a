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
            os.utime(path)
        return path

    def add(self, write: Callable[[Path], str]) -> Path:
        """Stores what ``write`` writes to the path that it gets, by the name that it returns. What is there stays."""
        self.path.mkdir(mode=0o700 if self._is_own else 0o777, parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self.path))
        try:
            name = write(unfinished / "new")
            if (there := self.find(name)) is None:
                there = self.path / name
                try:
                    os.rename(unfinished / "new", there)
                except OSError:
                    if not there.exists():  # not written by another process meanwhile
                        raise
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
                if now - path.stat().st_mtime > most:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _home() -> Path:
    if home := os.environ.get("FEEDSTOCK_CACHE"):
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "feedstock"
