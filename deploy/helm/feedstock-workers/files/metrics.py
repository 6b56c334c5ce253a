"""Serves the status of a worker on the same machine in Prometheus' text format, at /metrics.

A scrape asks the worker once. A worker that does not answer makes the scrape fail with status 503, so that Prometheus'
`up` is 0.
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import feedstock as fs

#: Field of the status, type, help.
METRICS = (
    ("streams", "gauge", "Streams under way"),
    ("plans", "gauge", "Recipes that the worker knows"),
    ("samples", "counter", "Samples made since the worker started"),
    ("shared_samples", "counter", "Samples taken from another stream that had made them already"),
    ("reserved_bytes", "gauge", "Bytes promised to streams"),
    ("memory_bytes", "gauge", "Limit of the bytes promised to streams"),
    ("threads", "gauge", "CPU threads that make rows"),
    ("capacity", "gauge", "Share of the work relative to other workers"),
    ("busy_s", "counter", "Seconds that the CPU threads have spent on rows, added up"),
    ("draining", "gauge", "1 if the worker is about to end"),
)


def text(status: dict[str, Any]) -> str:
    """Returns the status as metrics, named as Prometheus recommends: unit last, counters end in `_total`."""
    lines = []
    for field, kind, meaning in METRICS:
        name = "feedstock_worker_" + field.removesuffix("_s") + ("_seconds" if field.endswith("_s") else "")
        name += "_total" if kind == "counter" else ""
        lines += [f"# HELP {name} {meaning}.", f"# TYPE {name} {kind}", f"{name} {float(status[field])}"]
    return "\n".join(lines) + "\n"


def server(worker: str, port: int, **trust: Any) -> ThreadingHTTPServer:
    """Returns a server of /metrics on `port`; 0 picks a free one. `trust` goes to `fs.Workers`."""
    workers = fs.Workers([worker], **trust)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            try:
                body = text(json.loads(workers.status(worker))).encode()
            except fs.FeedstockError as error:
                self.send_error(503, explain=str(error))
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass  # a scrape every 30 s is not worth a line

    return ThreadingHTTPServer(("", port), Handler)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", required=True, metavar="HOST:PORT")
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--token-file", required=True, type=Path)
    for name in ("--ca", "--client-cert", "--client-key", "--server-name"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    server(
        options.worker,
        options.port,
        token=options.token_file.read_text(encoding="utf-8").strip(),
        ca=options.ca,
        certificate=options.client_cert,
        key=options.client_key,
        server_name=options.server_name,
    ).serve_forever()


if __name__ == "__main__":
    main()
