"""Writes the tars and indexes in `samples/tar_indexes/` with the tools that users have.

    python3 -m venv /tmp/tools
    /tmp/tools/bin/pip download --no-deps -d /tmp/wheels nvidia-dali-cuda130==2.4.0 megatron-energon==7.4.1
    unzip -o /tmp/wheels/nvidia_dali_cuda130-*.whl wds2idx.py -d /tmp/wheels    # needs GNU tar
    unzip -o /tmp/wheels/megatron_energon-*.whl -d /tmp/wheels
    python3 dataset/tests/real_tools/make_tar_indexes.py /tmp/wheels

`plain.tar` is in GNU's format with short names, `pax.tar` has an extended header in front of each member, `mixed.tar` has one
in front of one member only, `long.tar` has names of over 100 bytes in GNU's format, of which DALI's tool gives wrong
offsets. `bare.tar` has images alone, a folder before each second sample, and pax headers; it has no index of DALI's, which
does not expect folders. `x.idx` is DALI's index of `x.tar`, `x.tar.idx` is Energon's.
"""

import io
import pathlib
import re
import struct
import subprocess
import sys
import tarfile

HERE = pathlib.Path(__file__).parent / "samples" / "tar_indexes"
WHEELS = pathlib.Path(sys.argv[1])
SAMPLES = 6


def add(tar: tarfile.TarFile, name: str, content: bytes, mtime: float) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    info.mtime = mtime
    tar.addfile(info, io.BytesIO(content))


def write(name: str, form: int, key: str = "d/{:04}", mtime: float = 1, odd: int | None = None) -> pathlib.Path:
    at = HERE / f"{name}.tar"
    with tarfile.open(at, "w", format=form) as tar:
        for i in range(SAMPLES):
            this = key.format(i) + ("é" if i == odd else "")
            add(tar, f"{this}.jpg", bytes([i + 1]) * (700 + i), mtime)
            add(tar, f"{this}.cls", str(i).encode(), mtime)
            add(tar, f"{this}.seg.png", bytes([i + 101]) * 1500, mtime)
    return at


def write_bare() -> pathlib.Path:
    at = HERE / "bare.tar"
    with tarfile.open(at, "w", format=tarfile.PAX_FORMAT) as tar:
        for i in range(SAMPLES):
            if i % 2 == 0:
                folder = tarfile.TarInfo(f"d{i}")
                folder.type = tarfile.DIRTYPE
                tar.addfile(folder)
            add(tar, f"d{i // 2 * 2}/{i:04}.jpg", bytes([i + 1]) * (700 + i), 1.5)
            add(tar, f"d{i // 2 * 2}/{i:04}.seg.png", bytes([i + 101]) * 1500, 1.5)
    return at


def energon(at: pathlib.Path) -> None:
    """As `WebdatasetPreparator` and `TarIndexWriter` of megatron-energon 7.4.1 write it: the first header of each sample,
    then where reading ended. The rule for keys is read from its source."""
    source = (WHEELS / "megatron/energon/flavors/webdataset/config.py").read_text()
    rule = re.search(r'split_name_re = re\.compile\(r"(.*)"\)', source)[1]
    last = None
    with tarfile.open(at) as tar, open(f"{at}.idx", "wb") as index:
        for member in tar:
            match = re.match(rule, member.name) if member.isreg() else None
            if match is None:
                continue
            if match[1] != last:
                index.write(struct.pack("Q", member.offset))
            last = match[1]
        index.write(struct.pack("Q", tar.offset))


HERE.mkdir(parents=True, exist_ok=True)
for tar in (
    write("plain", tarfile.GNU_FORMAT),
    write("pax", tarfile.PAX_FORMAT, mtime=1.5),
    write("mixed", tarfile.PAX_FORMAT, odd=3),
    write("long", tarfile.GNU_FORMAT, key="d/" + "x" * 110 + "{:04}"),
):
    subprocess.run([sys.executable, WHEELS / "wds2idx.py", tar, tar.with_suffix(".idx")], check=True)
    energon(tar)
energon(write_bare())
