"""The data as named files or objects, for contenders that read these: images by class, audio clips of a
table."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from contenders.clips import number_of
from contenders.protocol import RETRY_AFTER_S, Job

# Connections that a client keeps; its default of 10 is fewer than the threads of some contenders.
CONNECTIONS = 128


def listed(job: Job) -> list[tuple[str, int]]:
    """Returns (path, label or number of the audio clip) of every sample."""
    where = job.uris["folder"]
    if job.speech:
        table = read_text(f"{where}/train.tsv")
        names = [
            row["path"] for row in csv.DictReader(io.StringIO(table), delimiter="\t", quoting=csv.QUOTE_NONE)
        ]
        return [(f"{where}/clips/{name}", number_of(name)) for name in names]
    places = objects(where) if job.remote else [str(path) for path in Path(where).glob("*/*.JPEG")]
    places.sort()
    classes = sorted({place.rsplit("/", 2)[1] for place in places})
    labels = {name: label for label, name in enumerate(classes)}
    return [(place, labels[place.rsplit("/", 2)[1]]) for place in places]


def objects(uri: str) -> list[str]:
    parts = urlsplit(uri)
    pages = client().get_paginator("list_objects_v2")
    found = pages.paginate(Bucket=parts.netloc, Prefix=parts.path.strip("/") + "/")
    return [f"s3://{parts.netloc}/{entry['Key']}" for page in found for entry in page.get("Contents", [])]


def read(place: str) -> bytes:
    """Returns the bytes of a file or an object."""
    if not place.startswith("s3://"):
        with open(place, "rb") as file:
            return file.read()
    parts = urlsplit(place)
    body: bytes = client().get_object(Bucket=parts.netloc, Key=parts.path.lstrip("/"))["Body"].read()
    return body


def read_text(place: str) -> str:
    return read(place).decode()


_clients: dict[int, Any] = {}


def client() -> Any:
    """Returns this process's boto3 client; the endpoint is in the environment. Clients may be shared by
    threads, but not across ``fork``."""
    process = os.getpid()
    if process not in _clients:
        import boto3
        from botocore.config import Config

        _clients.clear()
        # By default it waits 60 s for an answer before it repeats the request.
        settings = Config(
            max_pool_connections=CONNECTIONS, connect_timeout=RETRY_AFTER_S, read_timeout=RETRY_AFTER_S
        )
        _clients[process] = boto3.client("s3", config=settings)
    return _clients[process]


def tars(job: Job) -> list[str]:
    """Returns the WebDataset shards."""
    where = job.uris["webdataset"]
    names = objects(where) if job.remote else [str(path) for path in Path(where).iterdir()]
    return sorted(name for name in names if name.endswith(".tar") and (not job.speech or "-train-" in name))


def parquet(job: Job) -> list[str]:
    where = job.uris["parquet"]
    names = objects(where) if job.remote else [str(path) for path in Path(where).iterdir()]
    return sorted(name for name in names if "/train-" in name)
