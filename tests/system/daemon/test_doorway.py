"""A gateway that expects a door which others make, without an engine: holders of the tests' own.

With an engine, tests/system/compose has the same from outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.sandbox.containers.holder import UID
from keyhole.sandbox.programs import find_programs
from tests.system.compose.conftest import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.outside,
    pytest.mark.skipif(os.geteuid() != 0, reason="a holder is root of its container"),
]

ROOT = Path(__file__).parents[3]
KEYHOLE = (sys.executable, "-m", "keyhole")
POLICY = 'version = 1\n[egress]\nallow = ["nowhere.invalid"]\n'


class Site:
    """The directories that are volumes elsewhere, and a gateway."""

    def __init__(self, directory: Path) -> None:
        self.door, self.furnish = directory / "door", directory / "furnish"
        for each in (self.door, self.furnish):
            each.mkdir()
        self.policy = directory / "keyhole.toml"
        self.policy.write_text(POLICY)
        self.env = os.environ | {
            "HOME": str(directory),
            "XDG_STATE_HOME": str(directory / "state"),
            "XDG_CONFIG_HOME": str(directory / "config"),
            "XDG_RUNTIME_DIR": str(directory),
        }
        directory.chmod(0o700)
        self.gateway = self.start()

    def start(self) -> subprocess.Popen[str]:
        words = [*KEYHOLE, "up", "--foreground", "--door", str(self.door), "--trust"]
        words += ["--furnish", str(self.furnish), "--policy", str(self.policy)]
        return subprocess.Popen(words, env=self.env, stderr=subprocess.PIPE, text=True)

    def ask(self, *words: str) -> Any:  # noqa: ANN401 - as JSON
        done = subprocess.run(
            [*KEYHOLE, *words, "--json"], env=self.env, capture_output=True, text=True, check=False
        )
        return json.loads(done.stdout) if done.stdout else {}

    def door_lacks(self) -> str | None:
        """What the gateway says of its door; empty when there is one."""
        checks = {each["id"]: each for each in self.ask("health").get("checks", [])}
        return str(checks["door"]["note"] or "") if "door" in checks else None

    def sessions(self) -> list[str]:
        return [each["id"] for each in self.ask("ps")]

    @contextlib.contextmanager
    def holder(self) -> Iterator[subprocess.Popen[bytes]]:
        """In a network of its own, as an engine would start it."""
        socket = str(self.door / "registration.sock")
        module = "keyhole.sandbox.containers.holder"
        words = ["unshare", "-n", sys.executable, "-m", module, socket, str(find_programs().nft)]
        process = subprocess.Popen(words, stderr=subprocess.PIPE)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            assert process.stderr
            process.stderr.close()

    def close(self) -> None:
        self.gateway.terminate()
        self.gateway.wait(PATIENCE)
        assert self.gateway.stderr
        self.gateway.stderr.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A gateway for all of them."""
    made = Site(tmp_path_factory.mktemp("site"))
    yield made
    made.close()


@pytest.fixture
def site(place: Site) -> Site:
    """With a gateway that waits for a door."""
    place.policy.write_text(POLICY)
    if place.gateway.poll() is not None:
        place.close()
        place.gateway = place.start()
    eventually(lambda: (place.door_lacks() or "").startswith("no door is registered"))
    return place


def test_one_door_at_a_time_is_served_and_what_it_needs_is_there_only_meanwhile(site: Site) -> None:
    """I2, I5. A second holder waits; when the first is gone, the next session is another."""
    terms = site.furnish / "etc" / "entry"
    assert not terms.exists()
    with site.holder() as first:
        eventually(lambda: site.door_lacks() == "")
        status = Path(f"/proc/{first.pid}/status").read_text()
        assert f"Uid:\t{UID}" in status  # it has given up what it had
        assert "CapBnd:\t0000000000000000" in status
        (session,) = site.sessions()
        assert (terms.stat().st_mode & 0o777, (site.furnish / "kit/loader").exists()) == (0o444, 1)
        allowed = json.loads((site.furnish / "etc" / "policy.json").read_text())
        assert "nowhere.invalid" in json.dumps(allowed)
        with site.holder():
            assert site.sessions() == [session]
            first.kill()
            eventually(lambda: site.sessions() not in ([], [session]))
            eventually(lambda: site.door_lacks() == "")
    eventually(lambda: site.door_lacks() == "no door is registered")
    assert not terms.exists()
    assert site.sessions() == []


def test_health_names_the_host_that_is_not_reached(site: Site) -> None:
    """Control: the door is there."""
    with site.holder():
        eventually(lambda: site.door_lacks() == "")
        health = site.ask("health")
        (named,) = [each for each in health["checks"] if not each["on"]]
        assert health["healthy"] is False
        assert named["id"] == "nowhere.invalid:443"
        assert named["note"].startswith("name-unresolved")


def test_a_policy_that_was_changed_is_not_taken(site: Site) -> None:
    """I11: what was there when the gateway was started is what was accepted."""
    site.policy.write_text(POLICY.replace("nowhere", "elsewhere"))
    with site.holder() as refused:
        eventually(lambda: "is not what was accepted" in (site.door_lacks() or ""))
        assert refused.wait(PATIENCE) == 0  # who had the door hung up
        assert site.sessions() == []


def test_a_holder_ends_with_the_gateway(site: Site) -> None:
    """I2: the doorkeeper dies with it, and so does what lives on its connection."""
    with site.holder() as holder:
        eventually(lambda: site.door_lacks() == "")
        site.gateway.kill()
        assert holder.wait(PATIENCE) == 0


def test_a_holder_and_the_gateway_end_with_the_doorkeeper(site: Site) -> None:
    """I2. The gateway says so by its exit code, for whoever starts it again."""
    with site.holder() as holder:
        eventually(lambda: site.door_lacks() == "")
        (keeper,) = [pid for pid in _children(site.gateway.pid) if _name(pid) == "keyhole-run"]
        os.kill(keeper, signal.SIGKILL)
        assert holder.wait(PATIENCE) == 0
        assert site.gateway.wait(PATIENCE) == 1


def test_a_holder_ends_with_the_data_plane_and_the_next_one_is_served(site: Site) -> None:
    """I2: nothing can be reached through that door any more, so that a new one is to be made."""
    with site.holder() as holder:
        eventually(lambda: site.door_lacks() == "")
        (session,) = site.sessions()
        os.kill(site.ask("status")["data_plane"], signal.SIGKILL)
        assert holder.wait(PATIENCE) == 0
    with site.holder():
        eventually(lambda: site.door_lacks() == "")
        assert site.sessions() != [session]


@pytest.mark.parametrize("missing", ["--door", "--furnish", "--policy", "--foreground"])
def test_flags_of_a_door_go_together(tmp_path: Path, missing: str) -> None:
    flags = {"--door": "/d", "--furnish": "/f", "--policy": "/p", "--foreground": ""}
    words = [w for flag, value in flags.items() if flag != missing for w in (flag, value) if w]
    done = subprocess.run(
        [*KEYHOLE, "up", *words], env=os.environ | {"HOME": str(tmp_path)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "go together" in done.stderr


@pytest.mark.parametrize(
    ("flags", "said"), [((), "no gateway is running"), (("--json",), '"healthy": false')]
)
def test_where_no_gateway_is_nothing_is_healthy(
    tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    env = os.environ | {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    words = [*KEYHOLE, "health", *flags]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert said in done.stdout


def _children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
