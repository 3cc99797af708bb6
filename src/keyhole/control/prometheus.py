"""Prometheus's text format 0.0.4, written (docs: "Exposition formats").

Called by `server.py` for what `Operations.metrics` returns. Only numbers and labels of ours go
in; a label's value is escaped all the same, as host names of a policy may be among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_SAMPLES = 10_000
"""Samples of one answer, about 1 MiB. Labels are of a bounded set; a session is no label."""

TURN = 200
"""Samples that are written before the loop looks at others: some 0.3 ms."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Sample:
    """One number; `suffix` is `_bucket`, `_sum` or `_count` of a histogram."""

    value: float
    labels: tuple[tuple[str, str], ...] = ()
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: `kind` is counter, gauge or histogram."""

    name: str
    kind: str
    help: str
    samples: Iterable[Sample]
    """Made as they are written, so that neither takes long at a time."""


def lines(families: Iterable[Family]) -> Iterator[str]:
    """The lines of the answer, each with its end; nothing beyond MAX_SAMPLES."""
    left = MAX_SAMPLES
    for family in families:
        yield f"# HELP {family.name} {family.help.translate(_ESCAPES)}\n"
        yield f"# TYPE {family.name} {family.kind}\n"
        for sample in family.samples:
            if not left:
                return
            left -= 1
            yield f"{family.name}{sample.suffix}{_labels(sample)} {sample.value!r}\n"


def _labels(sample: Sample) -> str:
    if not sample.labels:
        return ""
    return (
        "{" + ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in sample.labels) + "}"
    )
