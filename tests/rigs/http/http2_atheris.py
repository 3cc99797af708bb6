"""A fuzzer of HTTP/2, guided by coverage: `http2_atheris.py TARGET [libFuzzer's flags] CORPUS`.

atheris is no package of the project's: the attack battery installs it for itself.
"""

from __future__ import annotations

import sys

import atheris  # type: ignore[import-untyped]

with atheris.instrument_imports(include=["keyhole.http"]):
    from tests.rigs.http.http2_fuzzing import TARGETS

if __name__ == "__main__":
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()
