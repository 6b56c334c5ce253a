"""Collects real files from the packages of packages.txt, through the clients of their registries.

A line of the list is `deb NAME VERSION SHA256` or `pypi NAME VERSION SHA256`. Debian packages come from
`apt-get download`, source archives from `pip download`. A package is unpacked once; the files that feedstock
claims to decode are kept in a separate folder, and a finished folder is not fetched again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Files of at most this size are kept: the survey covers many encoders, not long recordings.
MAX_FILE_BYTES = 32 << 20


@dataclass(frozen=True)
class Package:
    """One pinned package. `sha256` is that of the downloaded archive."""

    source: str
    name: str
    version: str
    sha256: str

    @property
    def folder(self) -> str:
        return f"{self.source}-{self.name}-{self.version}".replace(":", "_").replace("/", "_")


def read_list(path: Path) -> list[Package]:
    """Returns the packages of a list, in its order. Raises ValueError for a malformed line."""
    packages = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        fields = line.split()
        if len(fields) != 4 or fields[0] not in ("deb", "pypi"):
            raise ValueError(f"{path}:{number} must be `deb|pypi NAME VERSION SHA256`; got {line!r}")
        packages.append(Package(*fields))
    return packages


# The kind of data in each format that feedstock claims to decode.
KINDS = {"jpeg": "image", "png": "image", "webp": "image"}
KINDS |= dict.fromkeys(("aac", "flac", "m4a", "mp3", "ogg", "opus", "wav"), "audio")


def format_of(path: Path) -> str | None:
    """Returns a key of KINDS for the formats that feedstock claims, by the file's first bytes, else None."""
    with path.open("rb") as file:
        head = file.read(64)
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if head.startswith(b"RIFF"):
        return {b"WEBP": "webp", b"WAVE": "wav"}.get(head[8:12])
    if head.startswith(b"OggS"):
        return "opus" if b"OpusHead" in head else "ogg" if b"vorbis" in head or b"FLAC" in head else None
    if head.startswith(b"fLaC"):
        return "flac"
    if head.startswith(b"ID3"):
        return "flac" if path.suffix.lower() == ".flac" else "mp3"
    if path.suffix.lower() in (".mp3", ".aac", ".m4a"):
        if head[4:8] == b"ftyp":
            return "m4a"
        if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:
            return "aac" if head[1] & 0xF6 == 0xF0 else "mp3"
    return None


def archive_of(package: Package, folder: Path) -> Path:
    """Downloads the archive of `package` into `folder` and returns its path."""
    if package.source == "deb":
        command = ["apt-get", "-o", "APT::Sandbox::User=", "download", f"{package.name}={package.version}"]
    else:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", package.name]
        command.append(f"{package.name}=={package.version}")
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=900)
    archives = [path for path in folder.iterdir() if path.is_file()]
    if len(archives) != 1:
        raise RuntimeError(f"{package.name}: one archive expected; got {[path.name for path in archives]}")
    return archives[0]


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a Debian package, a tar or a zip into `folder`."""
    if archive.suffix == ".deb":
        subprocess.run(["dpkg-deb", "-x", archive, folder], check=True, capture_output=True)
    elif archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as file:
            file.extractall(folder)
    else:
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")


def keep(unpacked: Path, folder: Path) -> int:
    """Moves the files of known formats into `folder`, under their paths in the package; returns their number."""
    count = 0
    for path in sorted(unpacked.rglob("*")):
        if path.is_symlink() or not path.is_file() or not 0 < path.stat().st_size <= MAX_FILE_BYTES:
            continue
        if format_of(path) is None:
            continue
        target = folder / path.relative_to(unpacked)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, target)
        count += 1
    return count


def fetch(package: Package, cache: Path, *, pin: bool = False) -> Package:
    """Makes sure that the files of `package` are in `cache`; returns it with the hash of its archive.

    With `pin` the hash of the list is replaced instead of checked. Raises on a failed download and on another hash.
    """
    folder = cache / package.folder
    done = folder / ".collected.json"
    if done.exists() and not pin:
        return package
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        downloads, unpacked, kept = (Path(scratch) / name for name in ("download", "unpacked", "kept"))
        for path in (downloads, unpacked, kept):
            path.mkdir()
        archive = archive_of(package, downloads)
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if not pin and digest != package.sha256:
            raise RuntimeError(
                f"{package.name} {package.version}: sha256 must be {package.sha256}; got {digest}"
            )
        unpack(archive, unpacked)
        count = keep(unpacked, kept)
        (kept / ".collected.json").write_text(json.dumps({"files": count, "sha256": digest}))
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(kept, folder)
    return Package(package.source, package.name, package.version, digest)


def files_of(package: Package, cache: Path) -> Iterator[tuple[str, Path]]:
    """Yields (format, path) of the collected files, sorted by path."""
    for path in sorted((cache / package.folder).rglob("*")):
        if path.is_file() and not path.name.startswith(".collected"):
            file_format = format_of(path)
            if file_format is not None:
                yield file_format, path
