"""An engine, as much of it as Keyhole asks: the one module that speaks to Docker or Podman.

Both are spoken to over their Unix socket, Podman by what it has in common with Docker. Whatever
they answer becomes a value or one clear line (EngineFailed). The package that knows the protocol
takes a tenth of a second to import, so this module is imported only where containers are used.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import importlib
import io
import json
import os
import socket
import sys
import tarfile
import warnings
from typing import TYPE_CHECKING, Any

from keyhole.model.text import visible
from keyhole.model.value import dataclass
from keyhole.sandbox.containers.nature import WORDS, Nature
from keyhole.sandbox.containers.spec import LABEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_SECONDS = 60.0
"""How long one answer may take; what takes longer is waited for in another way."""
_MAX_WORDS = 400
"""Characters of what an engine says: some repeat all that they were asked."""
_COMMITS = ("ContainerdCommit", "RuncCommit", "InitCommit")
"""Where an engine says which build of its parts it has."""
_IS_LINK = 1 << 27
"""In the mode of a file, as Go has it."""
_MAX_FILE = 4 * 1024 * 1024
"""Bytes of a file that is read out of an image."""

NOBODYS_KEYS = "ctrl-^,ctrl-_,ctrl-^,ctrl-_"
"""What leaves a terminal that is not to be left: engines know no way to have none, and by default
hold every Ctrl-P back."""
THE_USUAL_KEYS = "ctrl-p,ctrl-q"
_REMOVED_ALREADY = "is already in progress"
"""In Docker's words for a container that goes by itself."""

_DEFAULTS = {
    "docker": ("/run/docker.sock", "/var/run/docker.sock"),
    "podman": ("/run/podman/podman.sock",),
}

_TREES = ("graphRoot", "runRoot", "volumePath")
"""Podman's words for where it keeps things."""


class EngineFailed(Exception):
    """The engine cannot be reached, or refuses; says what, in a line."""


class NoSuchThing(EngineFailed):
    """The engine knows no image, container or file of that name."""


@dataclass(frozen=True, slots=True)
class Image:
    """What the engine says of an image."""

    id: str
    environment: Mapping[str, str]
    volumes: tuple[str, ...]
    architecture: str


@dataclass(frozen=True, slots=True)
class Progress:
    """What the engine says while it pulls: a layer, what becomes of it, and how far that is."""

    layer: str
    status: str
    done: int
    total: int
    """In bytes; 0 when it does not say."""


@dataclass(frozen=True, slots=True)
class State:
    """What the engine says of a container."""

    id: str
    running: bool
    pid: int
    """Of its first process, as the host numbers it; 0 when there is none."""
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Joining:
    """What the engine says of a command that joined a container."""

    running: bool
    pid: int
    """As the host numbers it; 0 when it has not started, or has ended."""
    code: int | None
    """None until it has ended."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A container of ours, in a list."""

    id: str
    labels: Mapping[str, str]
    created: int
    """In seconds since 1970."""
    running: bool = False


@dataclass(frozen=True, slots=True)
class Greeting:
    """What an engine says of itself to everybody."""

    version: str
    """Of the newest protocol that it speaks."""
    podman: bool


@dataclass(frozen=True, slots=True)
class Joined:
    """Whose namespaces a container was asked to be in."""

    id: str
    name: str
    others: tuple[str, ...]
    """Containers whose network or process numbers it shares, as whoever made it named them."""


def address_of(engine: str, env: Mapping[str, str]) -> str:
    """The path of the socket of `docker` or `podman`, from the environment or where it usually is.

    EngineFailed for another kind of address: a door can be handed over on this host alone.
    """
    name = "DOCKER_HOST" if engine == "docker" else "CONTAINER_HOST"
    if said := env.get(name):
        scheme, _, path = said.partition("://")
        if scheme != "unix" or not path.startswith("/"):
            raise EngineFailed(
                f"{name} is {visible(said)}: Keyhole needs the engine's Unix socket on this host"
            )
        return path
    own = env.get("XDG_RUNTIME_DIR", "")
    places = [*_DEFAULTS[engine]]
    if own.startswith("/"):
        places.append(f"{own}/podman/podman.sock" if engine == "podman" else f"{own}/docker.sock")
    there = [place for place in places if os.path.exists(place)]
    there.sort(key=lambda place: not os.access(place, os.W_OK))  # those that answer us first
    if not there:
        raise EngineFailed(
            f"no {engine} runs here: there is no {' nor '.join(places)}; start it, or name its "
            f"socket in {name}"
        )
    return there[0]


class Engine:
    """One engine by its socket."""

    def __init__(self, path: str, greeting: Greeting | None = None) -> None:
        """`greeting` is what it has said of itself before, if it has."""
        self.path = path
        self._greeting = greeting or _greet(path)
        self._client = _client(path, self._greeting.version)

    def close(self) -> None:
        """Let go of it."""
        self._client.close()

    def another(self) -> Engine:
        """The same by connections of its own, for another thread."""
        return Engine(self.path, self._greeting)

    def nature(self) -> Nature:
        """What kind of engine it is."""
        with _translated(self.path):
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
        return Nature(build=build, rootless=rootless, remaps=remaps, bounds=bounds, cpus=cpus)

    def _rootless_podman(self, build: str, cpus: int) -> Nature:
        """By an address that is Podman's alone: what it says as Docker does names the controllers
        of the host, of which a user may have none."""
        client = self._client
        with _translated(self.path):
            answer = client.get(f"{client.base_url}/v4.0.0/libpod/info", timeout=_SECONDS)
            answer.raise_for_status()
            told = answer.json()
        host, store = told.get("host") or {}, told.get("store") or {}
        maps = host.get("idMappings") or {}
        owner = tuple(_outside(maps.get(kind) or ()) for kind in ("uidmap", "gidmap"))
        # By itself it makes no group where it may not, and says nothing of it; systemd does it or
        # refuses.
        managed = host.get("cgroupManager") == "systemd"
        controllers = frozenset(map(str, host.get("cgroupControllers") or ())) if managed else ()
        return Nature(
            build=build,
            rootless=True,
            keeps_ids=True,
            bounds=frozenset(WORDS).intersection(controllers),
            cpus=cpus,
            owner=(owner[0], owner[1]),
            trees=tuple(str(store[name]) for name in _TREES if store.get(name)),
        )

    def is_podman(self) -> bool:
        """Whether it only speaks as Docker does."""
        return self._greeting.podman

    def version(self) -> str:
        """What it is, with each of its parts, for a person; the same for as long as it is."""
        with _translated(self.path):
            told = self._client.version().get("Components") or ()
        parts = ", ".join(f"{part.get('Name')} {part.get('Version')}" for part in told)
        return visible(f"{parts or 'an engine'} ({self.path})")

    # ── images ────────────────────────────────────────────────────────────────────────────────────

    def image(self, name: str) -> Image:
        """An image that the engine has; NoSuchThing when it has none of that name."""
        with _translated(self.path):
            told = self._client.inspect_image(name)
        config = told.get("Config") or {}
        pairs = (text.partition("=") for text in config.get("Env") or ())
        return Image(
            str(told["Id"]),
            {name: value for name, _, value in pairs},
            tuple(config.get("Volumes") or ()),
            str(told.get("Architecture", "")),
        )

    def pull(self, name: str) -> Iterator[Progress]:
        """Have an image pulled; how far it is, until it is there. EngineFailed when it cannot be.

        As nobody: a login is not looked for, since that would start programs of this host's which
        nobody has judged (I11).
        """
        import docker

        try:
            with _translated(self.path):
                for told in self._client.pull(name, stream=True, decode=True, auth_config={}):
                    if error := told.get("error"):
                        raise EngineFailed(_cut(str(error)))
                    yield _progress(told)
        except docker.errors.InvalidRepository as error:
            raise EngineFailed(_cut(str(error))) from None

    def import_image(self, archive: bytes, name: str, labels: Mapping[str, str]) -> None:
        """Make an image of a tar archive."""
        changes = [f"LABEL {key}={value}" for key, value in labels.items()]
        with _translated(self.path):
            # With the tag in the name: Podman reads no other.
            self._client.import_image_from_data(archive, name, None, changes)

    def rename(self, name: str, to: str) -> None:
        """Give an image another name."""
        repository, _, tag = to.rpartition(":")
        with _translated(self.path):
            self._client.tag(name, repository, tag)
            self._client.remove_image(name)

    def images(self) -> list[str]:
        """The names of every image that carries our label."""
        with _translated(self.path):
            found = self._client.images(filters={"label": LABEL})
        return [str(name) for image in found for name in image.get("RepoTags") or ()]

    def volumes(self) -> list[str]:
        """The names of every volume that holds programs of ours; never one that people use."""
        with _translated(self.path):
            found = self._client.volumes(filters={"label": f"{LABEL}=kit"}).get("Volumes") or ()
        return [str(volume["Name"]) for volume in found]

    def volume(self, name: str) -> Mapping[str, str]:
        """The labels of a volume; NoSuchThing when there is none of that name."""
        with _translated(self.path):
            return dict(self._client.inspect_volume(name).get("Labels") or {})

    def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """Make one, which is root's and empty."""
        with _translated(self.path):
            self._client.create_volume(name, labels=dict(labels))

    def remove_volume(self, name: str) -> None:
        """Remove one; EngineFailed while something uses it."""
        with _translated(self.path):
            self._client.remove_volume(name)

    def forget_image(self, name: str) -> bool:
        """Remove an image, unless it is used."""
        return self._forget(lambda: self._client.remove_image(name))

    def forget_volume(self, name: str) -> bool:
        """Remove a volume, unless it is used."""
        return self._forget(lambda: self._client.remove_volume(name))

    def _forget(self, removal: Callable[[], object]) -> bool:
        try:
            with _translated(self.path):
                removal()
        except EngineFailed:
            return False
        return True

    # ── containers ────────────────────────────────────────────────────────────────────────────────

    def create(self, config: Mapping[str, Any], name: str | None = None) -> str:
        """Make a container; its id."""
        with _translated(self.path):
            return str(self._client.create_container_from_config(dict(config), name)["Id"])

    def start(self, container: str) -> None:
        """Start it."""
        with _translated(self.path):
            self._client.start(container)

    def state(self, container: str) -> State:
        """How it is."""
        with _translated(self.path):
            told = self._client.inspect_container(container)
        state, labels = told["State"], told["Config"].get("Labels") or {}
        return State(str(told["Id"]), bool(state["Running"]), int(state["Pid"]), labels)

    def attach(self, container: str, keys: str = NOBODYS_KEYS) -> socket.socket:
        """Its standard streams; before it is started, so that nothing of them is lost. `keys` leave
        its terminal again."""
        wanted = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1, "detachKeys": keys}
        with _translated(self.path):
            return _own(self._client.attach_socket(container, wanted))

    def resize(self, container: str, rows: int, columns: int) -> None:
        """Give its terminal a size."""
        with _translated(self.path):
            self._client.resize(container, rows, columns)

    def wait(self, container: str) -> int:
        """Its exit code, when it has ended; on a connection that nobody else uses meanwhile."""
        with _translated(self.path):
            self._client.timeout = None
            told = self._client.wait(container, timeout=None)
        return int(told["StatusCode"])

    # ── commands that join a container ────────────────────────────────────────────────────────────

    def join(self, container: str, words: Sequence[str], *, terminal: bool) -> str:
        """Have a command that can be started in a container which runs, as its user; its id."""
        with _translated(self.path):
            made = self._client.exec_create(
                container, list(words), stdin=True, tty=terminal, detach_keys=NOBODYS_KEYS
            )
        return str(made["Id"])

    def start_joined(self, command: str, *, terminal: bool) -> socket.socket:
        """Start it; its standard streams."""
        with _translated(self.path):
            return _own(self._client.exec_start(command, tty=terminal, socket=True))

    def resize_joined(self, command: str, rows: int, columns: int) -> None:
        """Give its terminal a size."""
        with _translated(self.path):
            self._client.exec_resize(command, rows, columns)

    def state_joined(self, command: str) -> Joining:
        """How it is."""
        with _translated(self.path):
            told = self._client.exec_inspect(command)
        return Joining(bool(told["Running"]), int(told.get("Pid") or 0), told.get("ExitCode"))

    def kill(self, container: str) -> None:
        """End it at once, if it has not ended."""
        with contextlib.suppress(EngineFailed), _translated(self.path):
            self._client.kill(container, "SIGKILL")

    def remove(self, container: str) -> None:
        """Leave nothing of it."""
        try:
            with contextlib.suppress(NoSuchThing), _translated(self.path):
                # Volumes without a name go along; that with our programs has one.
                self._client.remove_container(container, v=True, force=True)
        except EngineFailed as failed:
            # A holder that has just ended is removed by the engine itself.
            if _REMOVED_ALREADY not in str(failed):
                raise

    def containers(self, volume: str = "") -> list[Listed]:
        """Every container that carries our label; of those, who has this volume."""
        wanted = {"label": LABEL} | ({"volume": volume} if volume else {})
        with _translated(self.path):
            found = self._client.containers(all=True, filters=wanted)
        return [
            Listed(
                str(c["Id"]), c.get("Labels") or {}, int(c["Created"]), c.get("State") == "running"
            )
            for c in found
        ]

    def running(self) -> list[str]:
        """The ids of every container that runs, whoever made it."""
        with _translated(self.path):
            return [str(found["Id"]) for found in self._client.containers()]

    def joined(self, container: str) -> Joined:
        """Whom a container was attached to."""
        with _translated(self.path):
            told = self._client.inspect_container(container)
        host = told.get("HostConfig") or {}
        modes = (str(host.get(name) or "") for name in ("NetworkMode", "PidMode"))
        others = [mode.partition(":") for mode in modes]
        return Joined(
            str(told["Id"]),
            visible(str(told.get("Name", "")).removeprefix("/"))[:_MAX_WORDS],
            tuple(name for kind, _, name in others if kind == "container" and name),
        )

    def arrivals(self, since: int) -> Arrivals:
        """Containers that are made and started from then on, in seconds since 1970."""
        wanted = {"type": "container", "event": ["create", "start"]}
        with _translated(self.path):
            return Arrivals(self.path, self._client.events(since, None, wanted, decode=True))

    # ── files in a container that need not run ────────────────────────────────────────────────────

    def has(self, container: str, path: str) -> bool:
        """Whether something lies there, be it a link."""
        client = self._client
        url = f"{client.base_url}/v{client.api_version}/containers/{container}/archive"
        with _translated(self.path):
            return bool(
                client.head(url, params={"path": path}, timeout=_SECONDS).status_code == 200
            )

    def link(self, container: str, path: str) -> str:
        """Where a link leads in the end; empty for what is none, or not there."""
        client = self._client
        url = f"{client.base_url}/v{client.api_version}/containers/{container}/archive"
        with _translated(self.path):
            said = client.head(url, params={"path": path}, timeout=_SECONDS)
        # To Podman one that leads to nothing is not there; it says where it leads all the same.
        found = said.headers.get("X-Docker-Container-Path-Stat")
        if not found and said.status_code == 404:
            return ""
        try:
            told = json.loads(base64.b64decode(found or ""))
            return str(told["linkTarget"]) if int(told["mode"]) & _IS_LINK else ""
        except (KeyError, TypeError, ValueError):
            raise EngineFailed(f"the engine does not say what {path} of the image is") from None

    def read(self, container: str, path: str) -> bytes:
        """A small regular file; NoSuchThing when there is none."""
        with _translated(self.path):
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
        raise NoSuchThing(f"{path} of the image is no file")


def _package() -> Any:  # noqa: ANN401 - an untyped package
    """The package that knows the protocol, in two thirds of the time that its import takes.

    The package below it looks for one that guesses the encodings of web pages, which is a fifth of
    it all and never asked: engines speak JSON. As if that were not installed, it says so, once.
    Where it cannot do without, the import is made after all.
    """
    if (found := sys.modules.get("docker")) is not None:
        return found
    guesser, collects = "charset_normalizer", gc.isenabled()
    hidden = guesser not in sys.modules
    gc.disable()  # nothing that modules make is garbage
    try:
        if hidden:
            # Which is how one is hidden.
            sys.modules[guesser] = None  # type: ignore[assignment]
        with warnings.catch_warnings(), contextlib.suppress(ImportError):
            warnings.simplefilter("ignore")
            importlib.import_module("docker")
    finally:
        if hidden:
            sys.modules.pop(guesser, None)
        if collects:
            gc.enable()
    return importlib.import_module("docker")


def _client(path: str, version: str) -> Any:  # noqa: ANN401 - of an untyped package
    docker = _package()
    with _translated(path):
        client = docker.APIClient(f"unix://{path}", version=version, timeout=_SECONDS)
    # Else each request looks for proxies, and for a login in the user's .netrc to send along.
    client.trust_env = False
    return client


def _greet(path: str) -> Greeting:
    """By a ping, which asks no other program: for its version, an engine starts two."""
    oldest = str(_package().constants.MINIMUM_DOCKER_API_VERSION)
    client = _client(path, oldest)
    try:
        with _translated(path):
            said = client.get(f"{client.base_url}/_ping", timeout=_SECONDS)
            said.raise_for_status()
    finally:
        client.close()
    return Greeting(said.headers.get("Api-Version", oldest), "Libpod-Api-Version" in said.headers)


class Arrivals:
    """What the engine tells while it happens: `create` or `start`, and a container's id."""

    def __init__(self, path: str, stream: Any) -> None:  # noqa: ANN401 - of an untyped package
        self._path = path
        self._stream = stream

    def __iter__(self) -> Iterator[tuple[str, str]]:
        with _translated(self._path):
            for event in self._stream:
                yield str(event.get("Action", "")), str((event.get("Actor") or {}).get("ID", ""))

    def close(self) -> None:
        """Hear no more, from any thread."""
        # The package looks for the socket in what another thread may be done with.
        with contextlib.suppress(OSError, AttributeError, ValueError):
            self._stream.close()


def _own(given: Any) -> socket.socket:  # noqa: ANN401 - of an untyped package
    """Of our own: what the package keeps is closed when it is collected."""
    raw: socket.socket = getattr(given, "_sock", given)
    own = socket.socket(fileno=os.dup(raw.fileno()))
    own.setblocking(True)
    return own


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    """The package's errors as a line of ours."""
    docker = _package()
    import requests

    try:
        yield
    except docker.errors.InvalidRepository:
        raise
    except docker.errors.NotFound as error:
        raise NoSuchThing(_line(error)) from None
    except docker.errors.APIError as error:
        raise EngineFailed(f"the engine refuses: {_line(error)}") from None
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise EngineFailed(f"no engine answers at {path}: {_cause(error)}") from None


def _outside(mapping: Any) -> int:  # noqa: ANN401 - of an engine's answer
    """Who is root in a rootless engine, as the host numbers them; -1: nobody knows."""
    return next((int(line["host_id"]) for line in mapping if line.get("container_id") == 0), -1)


def _line(error: Any) -> str:  # noqa: ANN401 - of an untyped package
    return _cut(str(error.explanation or error))


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return visible(text if len(text) <= _MAX_WORDS else f"{text[:_MAX_WORDS]} …")


def _progress(told: Mapping[str, Any]) -> Progress:
    detail = told.get("progressDetail") or {}
    done, total = detail.get("current"), detail.get("total")
    if not (isinstance(done, int) and isinstance(total, int) and 0 <= done <= total):
        done = total = 0
    return Progress(str(told.get("id", "")), str(told.get("status", "")), done, total)


def _cause(error: BaseException) -> str:
    """The innermost reason, which alone says anything: `Permission denied`."""
    found: BaseException = error
    for _ in range(8):
        inner = found.__cause__ or found.__context__
        if inner is None:
            break
        found = inner
    return visible(getattr(found, "strerror", None) or str(found))
