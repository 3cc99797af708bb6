"""Takes a pod's interfaces away and makes the door in its network.

Called by the node agent before the first container of a pod starts. The interfaces go to a network
of their own, so that the pod's address keeps its place in the cluster; the agent alone listens
there. After an agent has died, the next one calls it again for pods that run: their networks are
empty already, and only the sockets are made anew.

A thread enters the network, makes the sockets and ends: a socket belongs to the network that it was
made in, whichever thread uses it.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from keyhole.model.errors import SetupFailed
from keyhole.sandbox import empty_network
from keyhole.sandbox.pods.interface_move import MovedInterfaces, move_interfaces
from keyhole.system import syscalls
from keyhole.system.namespaces import own_network

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from pathlib import Path

_Made = TypeVar("_Made")

_NETWORK = 0x40000000
"""CLONE_NEWNET."""

_RULES = "keyhole"


class PodDoor(Struct, frozen=True):
    """The door of a pod, and the socket on which the kernel reports interfaces that it gets."""

    sockets: list[socket.socket]
    links: socket.socket
    namespace: str
    moved: MovedInterfaces = MovedInterfaces()
    """What was taken away now."""

    def close(self) -> None:
        """Close every socket."""
        for each in (*self.sockets, self.links):
            each.close()


def make_door(pod: int, away: int, nft: Sequence[str]) -> PodDoor:
    """The door of the network `pod`, whose interfaces are moved to the network `away`; both are
    descriptors. Raises SetupFailed, and has then left the pod without an interface where it could
    (I2)."""
    return in_network(pod, lambda: _make_door(away, nft))


def new_network() -> int:
    """The descriptor of a new network, which lasts as long as a descriptor of it is open."""
    made: list[int] = []

    def make() -> None:
        syscalls.unshare(_NETWORK)
        made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))

    _in_thread(make)
    return made[0]


def keep_network(network: int, path: Path) -> None:
    """Give a network a name, by which it outlives this process. Raises OSError."""
    path.touch(0o600)
    tree = syscalls.clone_tree(network)
    try:
        syscalls.attach_tree(tree, str(path))
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(tree)


def in_network(network: int, work: Callable[[], _Made]) -> _Made:
    """Do work in a network, by a thread that enters it. Raises SetupFailed."""
    done: list[_Made] = []

    def enter() -> None:
        syscalls.enter_namespace(network, _NETWORK)
        done.append(work())

    _in_thread(enter)
    return done[0]


def _make_door(away: int, nft: Sequence[str]) -> PodDoor:
    moved = move_interfaces(away)
    # From here on an interface that appears is reported; one that came in between is found below.
    links = empty_network.watch_interfaces()
    try:
        empty_network.bring_up_loopback()
        if moved.names or not _is_prepared(nft):
            empty_network.make_everything_local()
            empty_network.load_ruleset(*nft)
        return PodDoor(empty_network.open_door_sockets(), links, own_network(), moved)
    except BaseException:
        links.close()
        raise


def _is_prepared(nft: Sequence[str]) -> bool:
    """Whether the network has the ruleset of an agent before this one."""
    listed = os.posix_spawn(
        nft[0],
        [*nft, "list", "table", "inet", _RULES],
        {},
        file_actions=[(os.POSIX_SPAWN_OPEN, n, "/dev/null", os.O_RDWR, 0) for n in (0, 1, 2)],
    )
    return os.waitpid(listed, 0)[1] == 0


def _in_thread(work: Callable[[], None]) -> None:
    """Run in a thread of its own, which ends with the namespaces that it entered."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again below
            failed.append(error)

    thread = threading.Thread(target=run, name="pod-network")
    thread.start()
    thread.join()
    if failed:
        if isinstance(failed[0], (OSError, RuntimeError)):
            raise SetupFailed(str(failed[0])) from None
        raise failed[0]
