"""A fleet in Ray's metrics, for its dashboard and Prometheus."""

from __future__ import annotations

from collections.abc import Sequence

#: Ray's agents collect metrics every few seconds.
PUBLISH_SECONDS = 5.0


class Metrics:
    """Gauges ``ray_feedstock_fleet_…`` with the tag ``fleet``."""

    def __init__(self, fleet: str) -> None:
        from ray.util.metrics import Gauge

        def gauge(name: str, description: str) -> Gauge:
            made = Gauge(f"feedstock_fleet_{name}", description=description, tag_keys=("fleet",))
            made.set_default_tags({"fleet": fleet})
            return made

        self._size = gauge("size", "Workers that the fleet should have.")
        self._workers = gauge("workers", "Workers that serve.")
        self._streams = gauge("streams", "Streams that ranks have open.")
        self._rate = gauge("samples_per_second", "Samples that all workers served in a second.")
        self._waited = gauge("waited_share", "Share of their time that ranks waited for data, 0 to 1.")
        self._last: tuple[float, int] | None = None  # when, samples
        self.samples_per_second: float = 0.0

    def publish(
        self, now: float, *, size: int, workers: int, streams: int, samples: int, waited: Sequence[float]
    ) -> None:
        """Publishes the numbers, at most every ``PUBLISH_SECONDS``."""
        if self._last is not None:
            passed = now - self._last[0]
            if passed < PUBLISH_SECONDS:
                return
            self.samples_per_second = (samples - self._last[1]) / passed
        self._last = now, samples
        self._size.set(size)
        self._workers.set(workers)
        self._streams.set(streams)
        self._rate.set(self.samples_per_second)
        if waited:
            self._waited.set(sum(waited) / len(waited))
