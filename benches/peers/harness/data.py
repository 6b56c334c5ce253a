"""The data: made once by ``feedstock synth``, stored in the cache folder, and served to contenders as files
or over S3."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from contenders.protocol import REALISTIC, S3, is_bucket

from harness.builds import sources_hash
from harness.stored import write_whole

LAYOUTS = {"pictures": ("parquet", "folder", "webdataset"), "speech": ("parquet", "folder", "webdataset")}
CHECK_SAMPLES = {"pictures": 128, "speech": 64}
# The keys of the testkit's S3 server.
KEYS = {"AWS_ACCESS_KEY_ID": "feedstock-test-access", "AWS_SECRET_ACCESS_KEY": "feedstock-test-SECRET-4f7a"}
REGION = "us-east-1"

# Options of the server for each bucket storage.
SERVER_OPTIONS: dict[str, tuple[str, ...]] = {S3: (), REALISTIC: ("--profile", "s3", "--seed", "1")}

SYNTH = Path(__file__).parents[3] / "synth"


def data_version() -> str:
    """Returns the version of the programs that make the data: data of other versions is made again."""
    return sources_hash(SYNTH)


def mark_of(path: Path) -> dict[str, Any]:
    """Returns the content of a marker; empty if there is none, or it is from an older program."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class Data:
    """The data of one kind (``pictures`` or ``speech``) in all layouts, in a bucket's folder."""

    def __init__(self, root: Path, kind: str, samples: int) -> None:
        self.kind, self.samples = kind, samples
        self.bucket = f"{kind}-{samples}"
        self.folder = root / self.bucket

    def make(self, before_each: Callable[[], None] = lambda: None) -> None:
        for layout in LAYOUTS[self.kind]:
            done = self.folder / f"{layout}.json"
            if mark_of(done).get("made_by") == data_version():
                continue
            before_each()
            done.unlink(missing_ok=True)
            print(f"making {self.samples:,} {self.kind} as {layout}", flush=True)
            command = [
                sys.executable,
                "-m",
                "feedstock",
                "synth",
                *self._arguments(layout),
                "--force",
                "--json",
                "--quiet",
            ]
            said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            write_whole(done, json.dumps({**json.loads(said), "made_by": data_version()}))

    def _arguments(self, layout: str) -> list[str]:
        samples = ["--samples", str(self.samples)]
        if self.kind == "pictures":
            # One class per sample if samples must be identified by their labels.
            classes = ["--classes", str(min(self.samples, 1000))]
            return ["imagenet", str(self.folder / layout), *samples, *classes, "--layout", layout]
        made = {"folder": "mozilla"}.get(layout, layout)
        return ["common-voice", str(self.folder / layout), *samples, "--layout", made, "--voice", "formant"]

    def facts(self) -> dict[str, object]:
        made: dict[str, object] = json.loads((self.folder / f"{LAYOUTS[self.kind][0]}.json").read_text())
        return {
            name: made[name]
            for name in ("samples", "image_bytes", "audio_bytes", "audio_seconds")
            if name in made
        }

    def used(self) -> int:
        """Returns the number of samples per epoch: all images, or the audio clips of the train table."""
        if self.kind == "pictures":
            return self.samples
        table = self.folder / "folder" / "en" / "train.tsv"
        with table.open() as lines:
            return sum(1 for _ in lines) - 1

    def sample_bytes(self, folder: Path) -> float:
        """Returns the mean bytes of a sample of an epoch, in the payload column of the Parquet files in
        ``folder``."""
        from pyarrow import parquet

        column = {"pictures": "image", "speech": "audio"}[self.kind]
        taken = samples = 0
        for path in sorted(folder.glob("train-*.parquet")):
            metadata = parquet.read_metadata(path)
            samples += metadata.num_rows
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                parts = (group.column(place) for place in range(group.num_columns))
                taken += sum(
                    part.total_compressed_size
                    for part in parts
                    if part.path_in_schema.split(".")[0] == column
                )
        return taken / samples

    def _base(self, storage: str) -> str:
        return f"s3://{self.bucket}" if is_bucket(storage) else str(self.folder)

    def uris(self, storage: str) -> dict[str, str]:
        base = self._base(storage)
        below = {"parquet": "/data", "folder": "/en" if self.kind == "speech" else "", "webdataset": ""}
        return {layout: f"{base}/{layout}{below[layout]}" for layout in LAYOUTS[self.kind]}

    def served(self, peers: list[str]) -> list[Path]:
        """Returns the folders that S3 serves, without caches of peers that read no native format from it."""
        names = [*LAYOUTS[self.kind], *(f"native-{peer}" for peer in peers)]
        return [self.folder / name for name in names if (self.folder / name).is_dir()]

    def native(self, storage: str, peer: str) -> str:
        return f"{self._base(storage)}/native-{peer}"


class S3Server:
    """The tests' S3 server, as a process whose CPU time is not counted as the contenders'."""

    def __init__(
        self, program: Path, root: Path, data: list[Data], peers: list[str], storage: str = S3
    ) -> None:
        """Serves the folders of ``data``, including native formats of ``peers``. Folders that are not stored
        yet are copied in first."""
        root.mkdir(parents=True, exist_ok=True)
        new = [folder for part in data for folder in part.served(peers)]
        new = [folder for folder in new if not self._holds(root, folder)]
        for folder in new:
            self._mark(root, folder).unlink(missing_ok=True)
            shutil.rmtree(root / folder.parent.name / folder.name, ignore_errors=True)
        if new:
            print(f"copying {', '.join(folder.name for folder in new)} into the S3 server", flush=True)
        imports = [f"{folder.parent.name}/{folder.name}={folder}" for folder in new]
        self._process = subprocess.Popen(
            [str(program), *SERVER_OPTIONS[storage], str(root), *imports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.endpoint = self._process.stdout.readline().strip()
        if not self.endpoint:
            raise RuntimeError(f"{program} ended at once")
        for folder in new:
            if not (root / folder.parent.name / folder.name).is_dir():
                raise RuntimeError(f"{program} did not take {folder} in")
            write_whole(self._mark(root, folder), self._made(folder))

    @staticmethod
    def _made(folder: Path) -> str:
        """Returns the marker of the program that made the folder."""
        mark = folder.with_name(f"{folder.name}.json")
        return mark.read_text() if mark.is_file() else ""

    @classmethod
    def _holds(cls, root: Path, folder: Path) -> bool:
        mark = cls._mark(root, folder)
        return mark.is_file() and mark.read_text() == cls._made(folder)

    @staticmethod
    def _mark(root: Path, folder: Path) -> Path:
        return root.with_name(f"{root.name}-has-{folder.parent.name}-{folder.name}")

    def environment(self) -> dict[str, str]:
        """Returns environment variables for AWS's libraries and compatible ones."""
        return {
            **KEYS,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "S3_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
            # Turns off newer checksums, which the server does not support.
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
            "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
        }

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> S3Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
