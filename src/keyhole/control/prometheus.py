"""Metrics in Prometheus's text format 0.0.4, written by `prometheus-client`.

Called by `dispatch.py` with the result of `Operations.metrics`, in a thread of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client import Metric

MAX_SAMPLES = 10_000
"""Samples of one answer, about 1 MiB. Labels are of a bounded set; a session is no label."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Sample(Struct, frozen=True):
    """One number; `suffix` is `_bucket`, `_sum` or `_count` of a histogram."""

    value: float
    labels: tuple[tuple[str, str], ...] = ()
    suffix: str = ""


class Family(Struct, frozen=True):
    """A metric: `kind` is counter, gauge or histogram."""

    name: str
    kind: str
    help: str
    samples: Iterable[Sample]


class _Families:
    """Our metrics in the library's form; nothing beyond MAX_SAMPLES."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        from prometheus_client import Metric

        left = MAX_SAMPLES
        for family in self._families:
            # The library adds `_total` to the name of a counter, and not to those of its samples.
            metric = Metric(family.name.removesuffix("_total"), family.help, family.kind)
            for sample in family.samples:
                if not left:
                    break
                left -= 1
                labels = {name: _printable(text) for name, text in sample.labels}
                metric.add_sample(family.name + sample.suffix, labels, sample.value)
            yield metric


def exposition(families: Iterable[Family]) -> bytes:
    """The text of the answer."""
    # Imported here: it imports an HTTP server and takes 60 ms, and metrics are seldom asked for.
    from prometheus_client import generate_latest

    return generate_latest(_Families(families))


def _printable(text: str) -> str:
    """The text without lone surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode()
