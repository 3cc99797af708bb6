"""All sessions of this user, of a shared gateway and of runs that have their own, and acts on them.

It blocks while it asks the endpoints, each in its own thread. So call it in a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.containers.named_sandbox import list_sandboxes
from keyhole.control.client import ControlFailed, NoGateway
from keyhole.control.endpoints import ask_all, find_endpoints
from keyhole.model.errors import ResourceUnusable

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.control.endpoints import ControlEndpoint
    from keyhole.control.values import SessionView


class WatchedSession(Struct, frozen=True):
    """A session as it is watched."""

    view: SessionView
    own: bool
    """Whether it has a gateway of its own."""
    name: str = ""
    """The name of its sandbox, if that has one."""


class WatchedSessions(Struct, frozen=True):
    """All sessions, the oldest first, and the endpoints that did not answer."""

    sessions: tuple[WatchedSession, ...]
    problem: str = ""


def list_sessions(paths: HostPaths) -> WatchedSessions:
    """All sessions now. Never raises for an endpoint that cannot be asked."""
    try:
        endpoints = find_endpoints(paths.runtime)
    except ResourceUnusable as error:
        return WatchedSessions((), str(error))
    names = {each.life().session: each.name for each in list_sandboxes(paths.sandboxes)}
    found, problem = [], ""
    for endpoint, answer in ask_all(endpoints, lambda each: each.sessions()):
        if isinstance(answer, NoGateway):
            continue
        if isinstance(answer, ControlFailed):
            problem = str(answer)
            continue
        own = endpoint.run is not None
        found += [WatchedSession(each, own, names.get(each.id, "")) for each in answer]
    found.sort(key=lambda each: (each.view.opened, each.view.id))
    return WatchedSessions(tuple(found), problem)


def short_path(path: str, home: Path) -> str:
    """The path with `~` for the home."""
    top = str(home).rstrip("/") + "/"
    return f"~/{path.removeprefix(top)}" if path.startswith(top) else path


def endpoint_of(paths: HostPaths, session: str) -> ControlEndpoint:
    """The endpoint of a session: its run's own, or else the gateway's. Raises ResourceUnusable."""
    endpoints = find_endpoints(paths.runtime)
    of_runs = {each.run.session: each for each in endpoints if each.run}
    return of_runs.get(session, endpoints[0])


def act_on_session(paths: HostPaths, session: str, act: str) -> None:
    """Revoke, stop or resume a session. Raises ControlFailed or ResourceUnusable."""
    endpoint = endpoint_of(paths, session)
    if act == "revoke":
        endpoint.revoke(session)
    elif act == "stop":
        endpoint.stop(session)
    elif act == "resume":
        endpoint.resume(session)
    else:
        raise ValueError(act)
