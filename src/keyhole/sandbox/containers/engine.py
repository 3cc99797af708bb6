"""The requests that Keyhole makes to a container engine: images, volumes, containers, commands,
files.

The only module that sends requests to Docker or Podman, through `engine_client.py`. Every answer
becomes a value (`engine_values.py`) or an EngineFailed.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

from keyhole.model.text import visible
from keyhole.sandbox.containers.container_spec import LABEL
from keyhole.sandbox.containers.engine_client import (
    MAX_WORDS,
    RESPONSE_SECONDS,
    EngineFailed,
    NotInEngine,
    greet,
    import_docker,
    one_line,
    open_client,
    own_socket,
    translated,
)
from keyhole.sandbox.containers.engine_traits import WORDS, EngineTraits
from keyhole.sandbox.containers.engine_values import (
    ContainerState,
    EngineImage,
    EngineInfo,
    ExecState,
    JoinedNamespaces,
    ListedContainer,
    PullProgress,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping, Sequence

_COMMITS = ("ContainerdCommit", "RuncCommit", "InitCommit")
"""The fields with the versions of an engine's parts."""
_IS_LINK = 1 << 27
"""The bit of a link in Go's file mode."""
_MAX_FILE = 4 * 1024 * 1024
"""Largest file, in bytes, that is read out of an image."""

NOBODYS_KEYS = "ctrl-^,ctrl-_,ctrl-^,ctrl-_"
"""Keys to detach from a terminal that a person must not leave. An engine always has such keys, and
its default ones delay every Ctrl-P."""
THE_USUAL_KEYS = "ctrl-p,ctrl-q"
_REMOVED_ALREADY = "is already in progress"
"""Part of Docker's message about a container that is being removed by the engine itself."""

_TREES = ("graphRoot", "runRoot", "volumePath")
"""Fields in which Podman reports its storage directories."""


class Engine:
    """One engine by its socket."""

    def __init__(self, path: str, greeting: EngineInfo | None = None) -> None:
        """`greeting` is its description from an earlier request, if there is one."""
        self.path = path
        self._greeting = greeting or greet(path)
        self._client = open_client(path, self._greeting.version)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def another(self) -> Engine:
        """The same engine over separate connections, for another thread."""
        return Engine(self.path, self._greeting)

    def traits(self) -> EngineTraits:
        """The engine's properties."""
        with translated(self.path):
            told = self._client.info()
        options = [str(option) for option in told.get("SecurityOptions") or ()]
        # Docker has it among the options, Podman as a word of its own.
        rootless = bool(told.get("Rootless")) or any("name=rootless" in o for o in options)
        remaps = any("name=userns" in option for option in options)
        cpus = int(told.get("NCPU") or 0)
        commits = ((told.get(name) or {}).get("ID") for name in _COMMITS)
        build = " ".join(map(str, (told.get("ServerVersion"), *commits)))
        if rootless and self.is_podman():
            return self._rootless_podman(build, cpus)
        bounds = frozenset(name for name, word in WORDS.items() if told.get(word))
        return EngineTraits(build=build, rootless=rootless, remaps=remaps, bounds=bounds, cpus=cpus)

    def _rootless_podman(self, build: str, cpus: int) -> EngineTraits:
        """Read from Podman's own endpoint: its Docker-compatible one lists the controllers of the
        host, of which the user may have none."""
        client = self._client
        with translated(self.path):
            answer = client.get(f"{client.base_url}/v4.0.0/libpod/info", timeout=RESPONSE_SECONDS)
            answer.raise_for_status()
            told = answer.json()
        host, store = told.get("host") or {}, told.get("store") or {}
        maps = host.get("idMappings") or {}
        owner = tuple(_outside(maps.get(kind) or ()) for kind in ("uidmap", "gidmap"))
        # Podman by itself silently makes no group where it may not; systemd makes it or refuses.
        managed = host.get("cgroupManager") == "systemd"
        controllers = frozenset(map(str, host.get("cgroupControllers") or ())) if managed else ()
        return EngineTraits(
            build=build,
            rootless=True,
            keeps_ids=True,
            bounds=frozenset(WORDS).intersection(controllers),
            cpus=cpus,
            owner=(owner[0], owner[1]),
            trees=tuple(str(store[name]) for name in _TREES if store.get(name)),
        )

    def is_podman(self) -> bool:
        """Whether it is Podman, which only implements Docker's API."""
        return self._greeting.podman

    def version(self) -> str:
        """The engine and the versions of its parts, for a person. Constant while the engine
        runs."""
        with translated(self.path):
            told = self._client.version().get("Components") or ()
        parts = ", ".join(f"{part.get('Name')} {part.get('Version')}" for part in told)
        return visible(f"{parts or 'an engine'} ({self.path})")

    # ── images ────────────────────────────────────────────────────────────────────────────────────

    def image(self, name: str) -> EngineImage:
        """An image that the engine has; NotInEngine when it has none of that name."""
        with translated(self.path):
            told = self._client.inspect_image(name)
        config = told.get("Config") or {}
        pairs = (text.partition("=") for text in config.get("Env") or ())
        return EngineImage(
            str(told["Id"]),
            {name: value for name, _, value in pairs},
            tuple(config.get("Volumes") or ()),
            str(told.get("Architecture", "")),
        )

    def pull(self, name: str) -> Iterator[PullProgress]:
        """Pull an image and yield its progress. Raises EngineFailed when it cannot be pulled.

        Without a login: looking for one would start programs of this host that were not judged
        (I11).
        """
        docker = import_docker()
        try:
            with translated(self.path):
                for told in self._client.pull(name, stream=True, decode=True, auth_config={}):
                    if error := told.get("error"):
                        raise EngineFailed(one_line(str(error)))
                    yield _progress(told)
        except docker.errors.InvalidRepository as error:
            raise EngineFailed(one_line(str(error))) from None

    def import_image(self, archive: bytes, name: str, labels: Mapping[str, str]) -> None:
        """Create an image from a tar archive."""
        changes = [f"LABEL {key}={value}" for key, value in labels.items()]
        with translated(self.path):
            # With the tag in the name: Podman reads no other.
            self._client.import_image_from_data(archive, name, None, changes)

    def rename(self, name: str, to: str) -> None:
        """Give an image another name."""
        repository, _, tag = to.rpartition(":")
        with translated(self.path):
            self._client.tag(name, repository, tag)
            self._client.remove_image(name)

    def images(self) -> list[str]:
        """The names of every image that carries our label."""
        with translated(self.path):
            found = self._client.images(filters={"label": LABEL})
        return [str(name) for image in found for name in image.get("RepoTags") or ()]

    def volumes(self) -> list[str]:
        """The names of every volume that holds our programs, never those of users."""
        with translated(self.path):
            found = self._client.volumes(filters={"label": f"{LABEL}=kit"}).get("Volumes") or ()
        return [str(volume["Name"]) for volume in found]

    def volume(self, name: str) -> Mapping[str, str]:
        """The labels of a volume; NotInEngine when there is none of that name."""
        with translated(self.path):
            return dict(self._client.inspect_volume(name).get("Labels") or {})

    def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a volume, which is empty and belongs to root."""
        with translated(self.path):
            self._client.create_volume(name, labels=dict(labels))

    def remove_volume(self, name: str) -> None:
        """Remove a volume. Raises EngineFailed while it is in use."""
        with translated(self.path):
            self._client.remove_volume(name)

    def forget_image(self, name: str) -> bool:
        """Remove an image, unless it is used."""
        return self._forget(lambda: self._client.remove_image(name))

    def forget_volume(self, name: str) -> bool:
        """Remove a volume, unless it is used."""
        return self._forget(lambda: self._client.remove_volume(name))

    def _forget(self, removal: Callable[[], object]) -> bool:
        try:
            with translated(self.path):
                removal()
        except EngineFailed:
            return False
        return True

    # ── containers ────────────────────────────────────────────────────────────────────────────────

    def create(self, config: Mapping[str, Any], name: str | None = None) -> str:
        """Create a container, and return its id."""
        with translated(self.path):
            return str(self._client.create_container_from_config(dict(config), name)["Id"])

    def start(self, container: str) -> None:
        """Start a container."""
        with translated(self.path):
            self._client.start(container)

    def state(self, container: str) -> ContainerState:
        """The state of a container."""
        with translated(self.path):
            told = self._client.inspect_container(container)
        state, labels = told["State"], told["Config"].get("Labels") or {}
        return ContainerState(str(told["Id"]), bool(state["Running"]), int(state["Pid"]), labels)

    def attach(self, container: str, keys: str = NOBODYS_KEYS) -> socket.socket:
        """Attach to the container's standard streams. Called before the start, so that no output is
        lost. `keys` detach from its terminal."""
        wanted = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1, "detachKeys": keys}
        with translated(self.path):
            return own_socket(self._client.attach_socket(container, wanted))

    def resize(self, container: str, rows: int, columns: int) -> None:
        """Resize its terminal."""
        with translated(self.path):
            self._client.resize(container, rows, columns)

    def wait(self, container: str) -> int:
        """Wait for its end, on a connection of its own, and return its exit code."""
        with translated(self.path):
            self._client.timeout = None
            told = self._client.wait(container, timeout=None)
        return int(told["StatusCode"])

    # ── commands that join a container ────────────────────────────────────────────────────────────

    def join(self, container: str, words: Sequence[str], *, terminal: bool) -> str:
        """Create a command in a running container, as the container's user, and return the
        command's id."""
        with translated(self.path):
            made = self._client.exec_create(
                container, list(words), stdin=True, tty=terminal, detach_keys=NOBODYS_KEYS
            )
        return str(made["Id"])

    def start_joined(self, command: str, *, terminal: bool) -> socket.socket:
        """Start such a command, and return its standard streams."""
        with translated(self.path):
            return own_socket(self._client.exec_start(command, tty=terminal, socket=True))

    def resize_joined(self, command: str, rows: int, columns: int) -> None:
        """Resize its terminal."""
        with translated(self.path):
            self._client.exec_resize(command, rows, columns)

    def state_joined(self, command: str) -> ExecState:
        """The state of such a command."""
        with translated(self.path):
            told = self._client.exec_inspect(command)
        return ExecState(bool(told["Running"]), int(told.get("Pid") or 0), told.get("ExitCode"))

    def kill(self, container: str) -> None:
        """Kill a container, if it has not ended."""
        with contextlib.suppress(EngineFailed), translated(self.path):
            self._client.kill(container, "SIGKILL")

    def remove(self, container: str) -> None:
        """Remove a container, if it is there."""
        try:
            with contextlib.suppress(NotInEngine), translated(self.path):
                # Removes unnamed volumes too; the volume with our programs has a name.
                self._client.remove_container(container, v=True, force=True)
        except EngineFailed as failed:
            # A holder that has just ended is removed by the engine itself.
            if _REMOVED_ALREADY not in str(failed):
                raise

    def containers(self, volume: str = "") -> list[ListedContainer]:
        """Every container with our label; with `volume`, those that mount it."""
        wanted = {"label": LABEL} | ({"volume": volume} if volume else {})
        with translated(self.path):
            found = self._client.containers(all=True, filters=wanted)
        return [
            ListedContainer(
                str(c["Id"]), c.get("Labels") or {}, int(c["Created"]), c.get("State") == "running"
            )
            for c in found
        ]

    def running(self) -> list[str]:
        """The ids of every running container, ours or not."""
        with translated(self.path):
            return [str(found["Id"]) for found in self._client.containers()]

    def joined(self, container: str) -> JoinedNamespaces:
        """The containers that this container shares namespaces with."""
        with translated(self.path):
            told = self._client.inspect_container(container)
        host = told.get("HostConfig") or {}
        modes = (str(host.get(name) or "") for name in ("NetworkMode", "PidMode"))
        others = [mode.partition(":") for mode in modes]
        return JoinedNamespaces(
            str(told["Id"]),
            visible(str(told.get("Name", "")).removeprefix("/"))[:MAX_WORDS],
            tuple(name for kind, _, name in others if kind == "container" and name),
        )

    def arrivals(self, since: int) -> ContainerEvents:
        """Events of containers that are created and started after `since`, in seconds since
        1970."""
        wanted = {"type": "container", "event": ["create", "start"]}
        with translated(self.path):
            return ContainerEvents(self.path, self._client.events(since, None, wanted, decode=True))

    # ── files in a container that need not run ────────────────────────────────────────────────────

    def has(self, container: str, path: str) -> bool:
        """Whether the path exists, also as a dangling link."""
        client = self._client
        url = f"{client.base_url}/v{client.api_version}/containers/{container}/archive"
        with translated(self.path):
            return bool(
                client.head(url, params={"path": path}, timeout=RESPONSE_SECONDS).status_code == 200
            )

    def link(self, container: str, path: str) -> str:
        """The final target of a link; empty if there is none."""
        client = self._client
        url = f"{client.base_url}/v{client.api_version}/containers/{container}/archive"
        with translated(self.path):
            said = client.head(url, params={"path": path}, timeout=RESPONSE_SECONDS)
        # Podman reports a dangling link as missing, and still gives its target.
        found = said.headers.get("X-Docker-Container-Path-Stat")
        if not found and said.status_code == 404:
            return ""
        try:
            told = json.loads(base64.b64decode(found or ""))
            return str(told["linkTarget"]) if int(told["mode"]) & _IS_LINK else ""
        except (KeyError, TypeError, ValueError):
            raise EngineFailed(f"the engine does not say what {path} of the image is") from None

    def read(self, container: str, path: str) -> bytes:
        """The content of a small regular file. Raises NotInEngine when there is none."""
        with translated(self.path):
            pieces, _ = self._client.get_archive(container, path)
            data = b""
            for piece in pieces:
                data += piece
                if len(data) > _MAX_FILE:
                    raise EngineFailed(f"{path} of the image is over {_MAX_FILE} bytes")
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                if member.isreg() and (file := archive.extractfile(member)):
                    return file.read()
        raise NotInEngine(f"{path} of the image is no file")


class ContainerEvents:
    """The engine's events as they happen: `create` or `start`, and a container's id."""

    def __init__(self, path: str, stream: Any) -> None:  # noqa: ANN401 - of an untyped package
        self._path = path
        self._stream = stream

    def __iter__(self) -> Iterator[tuple[str, str]]:
        with translated(self._path):
            for event in self._stream:
                yield str(event.get("Action", "")), str((event.get("Actor") or {}).get("ID", ""))

    def close(self) -> None:
        """Stop, from any thread."""
        # The package looks up the socket in objects that another thread may have closed.
        with contextlib.suppress(OSError, AttributeError, ValueError):
            self._stream.close()


def _outside(mapping: Any) -> int:  # noqa: ANN401 - of an engine's answer
    """The host's uid of a rootless engine's root; -1 when unknown."""
    return next((int(line["host_id"]) for line in mapping if line.get("container_id") == 0), -1)


def _progress(told: Mapping[str, Any]) -> PullProgress:
    detail = told.get("progressDetail") or {}
    done, total = detail.get("current"), detail.get("total")
    if not (isinstance(done, int) and isinstance(total, int) and 0 <= done <= total):
        done = total = 0
    return PullProgress(str(told.get("id", "")), str(told.get("status", "")), done, total)
