"""Damages the files of `decode/`, and records Pillow's results for them in `damage.json`.

    python -m venv v && v/bin/pip install pillow==13.0.* && v/bin/python make_damage_references.py

A case is a file, its edits and Pillow's result. An edit is an offset, a number of bytes to remove, and hexadecimal bytes to
insert, in this order. A result is the size and the CRC-32 of the RGB, or null if Pillow rejects the file. The seed is fixed.
"""

from __future__ import annotations

import io
import json
import random
import struct
import zlib
from pathlib import Path
from typing import Any

from PIL import Image, ImageFile

HERE = Path(__file__).parent
JPEGS = ("420.jpg", "444.jpg", "cmyk.jpg", "grey.jpg", "optimized.jpg", "progressive.jpg", "restarts.jpg")
PNGS = ("1.png", "la.png", "p.png", "rgb.png")
CASES_A_FILE = 40

Edit = tuple[int, int, str]

ImageFile.LOAD_TRUNCATED_IMAGES = False


def pillow(data: bytes) -> dict[str, Any] | None:
    """Returns the result of `load()` and `convert("RGB")`, or None if they raise."""
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
            image.load()
            rgb = image.convert("RGB")
    except Exception:  # any way in which Pillow rejects a file
        return None
    return {"size": list(rgb.size), "crc32": zlib.crc32(rgb.tobytes())}


def apply(data: bytes, edits: list[Edit]) -> bytes:
    for at, removed, put in edits:
        data = data[:at] + bytes.fromhex(put) + data[at + removed :]
    return data


def random_edits(data: bytes, dice: random.Random) -> list[Edit]:
    """Returns one to three edits, most of them after the header, that leave the last four bytes unchanged."""
    edits = []
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(4 if dice.random() < 0.2 else len(data) // 2, len(data) - 64)
        what = dice.randrange(5)
        if what == 0:
            edits.append((at, 1, f"{data[at] ^ 1 << dice.randrange(8):02x}"))
        elif what == 1:
            edits.append((at, 2, f"ff{dice.choice((0xD0, 0xD4, 0xD9, 0x35, 0xC4, 0xE1, 0xFE)):02x}"))
        elif what == 2:
            edits.append((at, dice.randint(1, 16), ""))
        elif what == 3:
            edits.append((at, 0, dice.randbytes(dice.randint(1, 8)).hex()))
        else:
            edits.append((at, 16, "00" * 16))
    # From the end backwards, so that offsets stay valid.
    return sorted(edits, reverse=True)


def chunks(data: bytes) -> list[tuple[bytes, int, int]]:
    """Returns name, offset and length of each chunk of a PNG."""
    found, at = [], 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        found.append((data[at + 4 : at + 8], at, length + 12))
        at += length + 12
    return found


def chunk(name: bytes, content: bytes) -> str:
    checked = name + content
    return (struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))).hex()


def frame_control(sequence: int, data: bytes) -> str:
    width, height = struct.unpack(">II", data[16:24])
    return chunk(b"fcTL", struct.pack(">IIIIIHHBB", sequence, width, height, 0, 0, 1, 10, 0, 0))


def png_edits(data: bytes) -> dict[str, list[Edit]]:
    """Returns edits of a PNG's structure, by the defect that they cause."""
    found = chunks(data)
    header = next(at for name, at, _ in found if name == b"IHDR")
    first, first_bytes = next((at, size) for name, at, size in found if name == b"IDAT")
    last, last_bytes = next((at, size) for name, at, size in reversed(found) if name == b"IDAT")
    end, image_end = len(data), last + last_bytes
    edits: dict[str, list[Edit]] = {
        "checksum of the header": [(header + 21, 4, "00000000")],
        "checksum of the image data": [(first + first_bytes - 4, 4, "00000000")],
        "checksum of the end": [(end - 4, 4, "00000000")],
        "checksum of a chunk after the image data": [
            (image_end, 0, chunk(b"tEXt", b"a\0b")[:-8] + "00000000")
        ],
        "checksum of a chunk before the image data": [(first, 0, chunk(b"tEXt", b"a\0b")[:-8] + "00000000")],
        "no end": [(image_end, end - image_end, "")],
        "no end and no checksum of the image data": [(image_end - 4, end - image_end + 4, "")],
        "no end and no checksum of the zlib stream": [(image_end - 8, end - image_end + 8, "")],
        "cut in the last rows": [(image_end - 40, end - image_end + 40, "")],
        "garbage instead of the end": [(image_end, end - image_end, "a5" * 40)],
        "garbage after the end": [(end, 0, "a5" * 40)],
        "cut in a chunk after the image data": [(image_end, end - image_end, chunk(b"tEXt", b"a\0b")[:-10])],
        "checksum of the zlib stream": [(image_end - 5, 1, f"{data[image_end - 5] ^ 1:02x}")],
        "unknown critical chunk": [(first, 0, chunk(b"ABCD", b"12"))],
        "unknown critical chunk after the image data": [(image_end, 0, chunk(b"ABCD", b"12"))],
        "two headers": [(first, 0, data[header : header + 25].hex())],
        "frame of an animation out of sequence": [
            (first, 0, chunk(b"acTL", struct.pack(">II", 2, 0)) + frame_control(0, data)),
            (image_end + 20 + 38, 0, frame_control(5, data)),
        ],
    }
    for name, at, size in found:
        if name == b"PLTE":
            content = data[at + 8 : at + size - 4]
            edits["no palette"] = [(at, size, "")]
            edits["palette with a part of an entry"] = [(at, size, chunk(b"PLTE", content[:31]))]
            edits["short palette"] = [(at, size, chunk(b"PLTE", content[:30]))]
    return edits


def main() -> None:
    dice = random.Random(21)
    cases = []
    for file in (*JPEGS, *PNGS):
        data = (HERE / "decode" / file).read_bytes()
        variants = [("", random_edits(data, dice)) for _ in range(CASES_A_FILE)] if file in JPEGS else []
        if file in PNGS:
            variants += png_edits(data).items()
        for what, edits in variants:
            case: dict[str, Any] = {"file": file, "edits": edits, "pillow": pillow(apply(data, edits))}
            cases.append({"what": what, **case} if what else case)
    lines = ",\n".join(json.dumps(case) for case in cases)
    (HERE / "damage.json").write_text(f"[\n{lines}\n]\n")
    decoded = sum(case["pillow"] is not None for case in cases)
    print(f"{len(cases)} cases, of which Pillow decodes {decoded}")


if __name__ == "__main__":
    main()
