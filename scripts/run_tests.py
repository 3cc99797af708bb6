"""Runs every test but the attack battery, a part for each processor at once and two more.

Called by `make test`, for a person and for CI alike. A part is one folder of tests/system, or half
of a large one, or of tests/unit; the unit tests of rooms that are not pure are one part. A pytest
of its own runs each: what its tests share is made once, and two parts have nothing in common but
the host. Only the unit tests of the pure rooms are measured, since the tracer costs as much as the
tests themselves, and of these not hypothesis's: they are a part of their own, and a line that
chance alone has covered is not covered. Tests marked `alone` compare times, so they come last and
run when nothing else does.

With `--random-order=SEED` the tests of each part are in an order that the number chooses; `make
stress` uses it.

A part is shown when it has ended, whole if something failed; names of what failed come once more at
the end. Exits with 0 only if every part passed and the pure rooms are covered whole.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parent.parent

PURE = ("policy", "inject", "wire", "http", "model")

STOREYS = ("unit", "system")

MEASURED = tuple(f"unit/{room}" for room in PURE)

PROPERTIES = "properties"
"""The part with the pure rooms' tests that hypothesis feeds."""

OTHER_ROOMS = "unit/others"
"""The part with the unit tests of rooms that are not pure. Each is done in seconds, of which its
pytest takes one or two to start."""

LONGEST_FIRST = (
    "system/sandbox", "system/containers", "system/daemon", "system/cli", "system/clients",
    "system/gateway", "system/docs", "system/compose", "system/git", OTHER_ROOMS, "system/bounded",
    PROPERTIES, "unit/policy", "unit/inject", "system/podman", "system/web", "system/judge",
    "unit/wire", "unit/http",
)  # fmt: skip
"""So that none of them is left over when all others have ended; what is not named comes after."""

DEALT = ("system/sandbox",)
"""Folders whose tests take about as long as those of all others together."""

MAX_LANES = 4
"""Parts at once. Each makes sandboxes, servers and accounts: more would hinder one another."""

WAITING_LANES = 2
"""Parts beyond one for each processor. The long ones wait for processes and time limits about half
of their time: those of the daemon take 440 seconds, and a processor for about 250 of them."""

USUAL = "not attack and not alone"

SUMMARY = "short test summary info"
"""What pytest writes above the reasons for skips and the names of failures."""

RESULT = re.compile(
    r"^.*\b\d+ (?:passed|failed|errors?|skipped|deselected)\b.* in [\d.]+s.*$", re.M
)


@dataclass(frozen=True)
class Part:
    """Tests that one pytest runs."""

    name: str
    paths: tuple[Path, ...]
    marks: str
    measured: bool = False

    @property
    def stem(self) -> str:
        """The name as files have it."""
        return self.name.replace("/", "-")


@dataclass(frozen=True)
class Ended:
    """How a part ended and what it said."""

    part: Part
    code: int
    said: str

    @property
    def result(self) -> str:
        """Counts and time, as pytest puts them in its last line."""
        found = RESULT.findall(self.said)
        return str(found[-1]) if found else f"ended with {self.code}"

    @property
    def summary(self) -> str:
        """Reasons for skips and names of failures."""
        _, head, rest = self.said.rpartition(SUMMARY)
        lines = rest.splitlines()[1:] if head else []
        named = itertools.takewhile(lambda line: not RESULT.search(line), lines)
        return "".join(f"{line}\n" for line in named)

    def shown(self) -> str:
        """What a person reads of it, at once."""
        told = self.summary if self.code == 0 else f"{self.said.rstrip()}\n"
        return f"{self.part.name:<20}{self.result}\n{told}"


def _dealt(name: str, path: Path) -> list[Part]:
    """The part of a folder; of one that would outlast all others, two that share its files."""
    if name not in DEALT:
        return [Part(name, (path,), USUAL)]
    files = sorted(path.rglob("test_*.py"))
    hands = [tuple(files[number::2]) for number in range(2)]
    return [Part(f"{name}-{n}", hand, USUAL) for n, hand in enumerate(hands, 1) if hand]


def parts(tests: Path) -> tuple[list[Part], Part | None]:
    """Those that run side by side, and the one that runs after them; no test is in none."""
    folders = [path for storey in STOREYS for path in (tests / storey).iterdir()]
    found = {str(path.relative_to(tests)): path for path in folders if any(path.rglob("test_*.py"))}
    pure = {name: found[name] for name in sorted(found) if name in MEASURED}
    others = tuple(
        found[name] for name in sorted(found) if name.startswith("unit/") and name not in pure
    )
    together = [
        Part(name, (path,), f"{USUAL} and not hypothesis", measured=True)
        for name, path in pure.items()
    ]
    for name in sorted(found):
        if name.startswith("system/"):
            together += _dealt(name, found[name])
    if pure:
        together.append(Part(PROPERTIES, tuple(pure.values()), f"{USUAL} and hypothesis"))
    if others:
        together.append(Part(OTHER_ROOMS, others, USUAL))
    order = {name: place for place, name in enumerate(LONGEST_FIRST)}
    together.sort(key=lambda part: order.get(part.name.partition("-")[0], len(order)))
    marked = [path for path in tests.rglob("test_*.py") if "mark.alone" in path.read_text("utf-8")]
    alone = Part("alone", tuple(sorted(marked)), "alone and not attack") if marked else None
    return together, alone


@dataclass
class Runner:
    """Starts parts, and ends them when it is interrupted itself."""

    directory: Path
    """Where each part writes what it says and what it measured."""
    colour: bool = False
    seed: int | None = None
    """Of a random order; None: in the order of files."""
    _running: set[subprocess.Popen[bytes]] = field(default_factory=set)

    def run(self, part: Part) -> Ended:
        """Run one part to its end."""
        words = [sys.executable, "-m"]
        if part.measured:
            words += ["coverage", "run", f"--data-file={self.directory}/{part.stem}.coverage", "-m"]
        words += ["pytest", "-q", "-m", part.marks, f"--color={'yes' if self.colour else 'no'}"]
        if self.seed is not None:
            words += ["-p", "randomly", f"--randomly-seed={self.seed}"]
        # Parts would overwrite one another's list of what failed last.
        words += ["-p", "no:cacheprovider", *(str(path) for path in part.paths)]
        with (self.directory / f"{part.stem}.said").open("w+b") as said:
            # In a session of its own, so that Ctrl-C comes to it once: from here.
            process = subprocess.Popen(  # noqa: S603
                words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
            try:
                code = process.wait()
            finally:
                self._running.discard(process)
            said.seek(0)
            return Ended(part, code, said.read().decode("utf-8", "replace"))

    def run_together(
        self, together: Sequence[Part], lanes: int, note: Callable[[Ended], None]
    ) -> None:
        """Run parts side by side; each is noted when it has ended."""
        with ThreadPoolExecutor(lanes) as pool:
            waiting = {pool.submit(self.run, part) for part in together}
            try:
                for done in as_completed(waiting):
                    waiting.discard(done)
                    note(done.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.interrupt()
                for done in waiting:
                    if not done.cancelled():
                        note(done.result())  # it says which test it was at
                raise

    def interrupt(self) -> None:
        """Ask what runs to clean up and end."""
        for process in tuple(self._running):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)


def covered(directory: Path) -> bool:
    """Say what is not covered of the pure rooms; the data stays in .coverage for who wants more."""
    measured = sorted(str(path) for path in directory.glob("*.coverage"))
    rooms = ",".join(f"src/keyhole/{room}/*" for room in PURE)
    for words in (
        ("combine", "--quiet", *measured),
        ("report", f"--include={rooms}", "--fail-under=100"),
    ):
        done = subprocess.run([sys.executable, "-m", "coverage", *words], cwd=ROOT, check=False)  # noqa: S603
        if done.returncode:
            return False
    return True


def main(tests: Path = ROOT / "tests", seed: int | None = None) -> int:
    """Run all; what `make test` exits with."""
    began = time.monotonic()
    lanes = min(len(os.sched_getaffinity(0)) + WAITING_LANES, MAX_LANES)
    together, alone = parts(tests)
    print(f"{len(together)} parts, {lanes} at a time; each is shown when it has ended", flush=True)
    failed: list[Ended] = []
    with tempfile.TemporaryDirectory(prefix="keyhole-tests-") as made:
        runner = Runner(Path(made), sys.stdout.isatty(), seed)

        def note(ended: Ended) -> None:
            print(ended.shown(), end="", flush=True)
            if ended.code:
                failed.append(ended)

        runner.run_together(together, lanes, note)
        if alone is not None:
            runner.run_together([alone], 1, note)
        whole = bool(failed) or not any(part.measured for part in together) or covered(Path(made))
    print(f"all parts ended after {time.monotonic() - began:.0f} s")
    for each in failed:
        print(f"\n{each.part.name}: {each.result}\n{each.summary}", end="")
    return 0 if whole and not failed else 1


def _end(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    # SIGINT too: whoever is started in the background ignores it, and would hand that on to parts.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--random-order", type=int, metavar="SEED")
    try:
        sys.exit(main(seed=parser.parse_args().random_order))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
