"""Ways out of a container, each tried from inside, and each seen to work where no wall stands.

What `keyhole doctor --runtime docker` tries by itself is the probe's; here is the rest, by the same
attempts as for bubblewrap, and the controls of what only containers have.
"""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest

from keyhole.sandbox.containers import holder_image
from tests.rigs.sandbox.attempts import AT_THE_DOOR, WAYS, check_no_way_lives
from tests.system.sandbox.test_door import CUT, NXDOMAIN
from tests.system.sandbox.test_walls import Services

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import trustme

    from tests.rigs.containers.engines import OwnEngine
    from tests.rigs.sandbox.origin import GitAndWeb
    from tests.system.containers.conftest import Boxed

pytestmark = pytest.mark.outside

ENGINE_ROWS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from keyhole.sandbox.probe import engine_rows
with open("/out/rows", "w") as file:
    json.dump(engine_rows(), file)
"""

HOLDER = """
import json, os, signal
met = {}
for name, work in {
    "end": lambda: os.kill(1, signal.SIGKILL),
    "stop": lambda: os.kill(1, signal.SIGSTOP),
    "hold": lambda: os.close(os.pidfd_open(1)),
    "slow": lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
    "starve": lambda: os.sched_setaffinity(1, {0}),
    "see": lambda: os.listdir("/proc/1/fd"),
    "score": lambda: os.close(os.open("/proc/1/oom_score_adj", os.O_WRONLY)),
}.items():
    try:
        work()
        met[name] = "done"
    except OSError as error:
        met[name] = type(error).__name__
print(json.dumps(met))
"""


def test_no_way_that_is_dead_for_bubblewrap_lives_in_a_container(plain: Boxed) -> None:
    """I1, I2. Control: the host itself reaches its services."""
    services = Services(plain.directory)
    try:
        assert services.reached_from_the_host() == [b"hello"] * 3
        environment = {"API_TOKEN": "mark-0123456789", "SSH_AUTH_SOCK": services.path}
        found = plain.python(WAYS, json.dumps(services.targets), env=environment)
    finally:
        services.close()
        (plain.directory / "service.sock").unlink()
    check_no_way_lives(found, "mark-0123456789")


def test_what_the_door_lets_pass_is_the_same_for_a_container(
    new_project: Callable[..., Boxed], origin: GitAndWeb, authority: trustme.CA
) -> None:
    """I3, I4: addresses, names, ports and resolvers. Control: the allowed name is reached."""
    project = new_project(origin.policy("origin.example", "second.example", "*.wild.example"))
    project.write("ca.pem", authority.cert_pem.bytes().decode())
    with socket.create_server(("127.0.0.1", 0)) as service:
        port = service.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), 5).close()  # control: the host reaches it
        service.accept()[0].close()
        met = project.python(AT_THE_DOOR, str(port), "ca.pem")
        service.setblocking(False)
        with pytest.raises(BlockingIOError):
            service.accept()
    assert (met["allowed"], met["second"]) == ("hello /here", "hello /here")
    for what in (
        "literal", "literal other port", "literal 6", "mapped 6", "not handed out", "not tls",
        "other port", "plain http", "host loopback", "host loopback 6", "udp", "udp to allowed",
    ):  # fmt: skip
        assert met[what].startswith(CUT), (what, met[what])
    for what in ("other sni", "evil sni", "no sni"):
        assert met[what].startswith("SSL"), (what, met[what])
    assert met["own loopback"] == "own"
    for server in ("192.0.2.53", "203.0.113.53", "127.0.0.1"):
        assert met[f"allowed by {server}"] == met["allowed address"]
        assert met[f"evil by {server}"] == NXDOMAIN
    assert met["evil by tcp"] == met["suffix"] == met["wild itself"] == NXDOMAIN


def test_the_holder_cannot_be_touched_from_inside(plain: Boxed) -> None:
    """I2: it is the first process that the sandbox sees, and with it all of them would end.

    Control: `pidfd_open` works, so the number is somebody's; and the run goes on to its end.
    """
    met = plain.python(HOLDER)
    assert met.pop("hold") == "done"
    assert set(met.values()) == {"PermissionError"}, met


def test_what_only_containers_have_is_open_where_no_wall_stands(
    plain: Boxed, dockerd: OwnEngine, image: str, tmp_path: Path
) -> None:
    """The control of the probe's rows on the kernel's files, groups and first process (I2): in a
    container of the same engine and image, without our walls, the same attempts succeed."""
    assert plain.run("id").code == 0  # so the engine has the kit
    kit = next(name for name in dockerd.engine.volumes() if name.startswith("keyhole-holder-"))
    rows = _in_plain_container(dockerd, image, kit, tmp_path)
    fallen = {name for name, held, _ in rows if not held}
    assert {"write /proc/sys/kernel/core_pattern", "write /proc/sys/net/ipv4/ip_forward",
            "first-process end"} <= fallen  # fmt: skip
    assert any(name.startswith("new-group") for name in fallen)
    assert {name for name, held, _ in rows if held} >= {"control-end", "control-write"}


def _in_plain_container(
    dockerd: OwnEngine, image: str, kit: str, directory: Path
) -> list[tuple[str, bool, str]]:
    engine = dockerd.engine.another()  # waiting changes its patience
    made = engine.create(
        {
            "Image": image,
            "Entrypoint": holder_image.interpreter_command(
                "-I", "-S", "-c", ENGINE_ROWS, holder_image.OWN
            ),
            "HostConfig": {
                "NetworkMode": "none",
                "SecurityOpt": ["seccomp=unconfined", "apparmor=unconfined"],
                "MaskedPaths": [],
                "ReadonlyPaths": [],
                "Tmpfs": {"/sys/fs/cgroup": "rw"},  # as a hierarchy that could be written
                "LogConfig": {"Type": "none"},
                "Binds": [f"{kit}:{holder_image.TREE}", f"{directory}:/out"],
            },
        }
    )
    try:
        engine.start(made)
        assert engine.wait(made) == 0
    finally:
        engine.remove(made)
        engine.close()
    rows = json.loads((directory / "rows").read_text())
    return [(str(name), bool(held), str(seen)) for name, held, seen in rows]
