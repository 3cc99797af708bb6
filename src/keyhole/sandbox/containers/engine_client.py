"""The connection to Docker or Podman: the engine's Unix socket, through the `docker` package.

Used by `engine.py`. Podman is used through its Docker-compatible API. Every failure becomes an
error of one clear line (EngineFailed). The package takes a tenth of a second to import, so this
module is imported only where containers are used.
"""

from __future__ import annotations

import contextlib
import os
import socket
import warnings
from typing import TYPE_CHECKING, Any

from keyhole.model.errors import KeyholeError
from keyhole.model.text import visible
from keyhole.sandbox.containers.engine_values import EngineInfo
from keyhole.system.startup import import_without

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RESPONSE_SECONDS = 60.0
"""Seconds for one response; longer operations are waited for in another way."""
MAX_WORDS = 400
"""Characters of an engine's message that are shown: some repeat the whole request."""

_DEFAULTS = {
    "docker": ("/run/docker.sock", "/var/run/docker.sock"),
    "podman": ("/run/podman/podman.sock",),
}

NOT_INSTALLED = (
    "containers need the Python package docker, which is not installed here: "
    "pip install 'keyhole[containers]'"
)


class EngineFailed(KeyholeError):
    """The engine cannot be reached, or refuses; the message is one line."""

    reason = "engine-failed"


class NotInEngine(EngineFailed):
    """The engine knows no image, container or file of that name."""


def address_of(engine: str, env: Mapping[str, str]) -> str:
    """The path of the socket of `docker` or `podman`, from the environment or the usual place.

    Raises EngineFailed for another kind of address: a door can be handed over only on this host.
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
    there.sort(key=lambda place: not os.access(place, os.W_OK))  # those that we may use first
    if not there:
        raise EngineFailed(
            f"no {engine} runs here: there is no {' nor '.join(places)}; start it, or name its "
            f"socket in {name}"
        )
    return there[0]


def import_docker() -> Any:  # noqa: ANN401 - an untyped package
    """The `docker` package.

    `requests` looks for a package that guesses the encoding of web pages, which is never used,
    because engines answer JSON. That import is hidden, and the warning about it silenced.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return import_without("docker", "charset_normalizer")
    except ModuleNotFoundError:
        raise EngineFailed(NOT_INSTALLED) from None


def open_client(path: str, version: str) -> Any:  # noqa: ANN401 - of an untyped package
    """The package's client for an engine that speaks this version of the API."""
    docker = import_docker()
    with translated(path):
        client = docker.APIClient(f"unix://{path}", version=version, timeout=RESPONSE_SECONDS)
    # Else each request looks for proxies, and for a login in the user's .netrc to send along.
    client.trust_env = False
    return client


def greet(path: str) -> EngineInfo:
    """Learn the version by a ping. A request for the version would make an engine start two
    programs."""
    oldest = str(import_docker().constants.MINIMUM_DOCKER_API_VERSION)
    client = open_client(path, oldest)
    try:
        with translated(path):
            said = client.get(f"{client.base_url}/_ping", timeout=RESPONSE_SECONDS)
            said.raise_for_status()
    finally:
        client.close()
    return EngineInfo(said.headers.get("Api-Version", oldest), "Libpod-Api-Version" in said.headers)


def own_socket(given: Any) -> socket.socket:  # noqa: ANN401 - of an untyped package
    """A descriptor of our own: the package closes its socket when it is collected."""
    raw: socket.socket = getattr(given, "_sock", given)
    own = socket.socket(fileno=os.dup(raw.fileno()))
    own.setblocking(True)
    return own


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Translate the package's errors into one-line errors."""
    docker = import_docker()
    import requests

    try:
        yield
    except docker.errors.InvalidRepository:
        raise
    except docker.errors.NotFound as error:
        raise NotInEngine(_line(error)) from None
    except docker.errors.APIError as error:
        raise EngineFailed(f"the engine refuses: {_line(error)}") from None
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise EngineFailed(f"no engine answers at {path}: {_cause(error)}") from None


def _line(error: Any) -> str:  # noqa: ANN401 - of an untyped package
    return one_line(str(error.explanation or error))


def one_line(text: str) -> str:
    """An engine's message as one short line that a terminal can show."""
    text = " ".join(text.split())
    return visible(text if len(text) <= MAX_WORDS else f"{text[:MAX_WORDS]} …")


def _cause(error: BaseException) -> str:
    """The innermost cause, which alone is useful: `Permission denied`."""
    found: BaseException = error
    for _ in range(8):
        inner = found.__cause__ or found.__context__
        if inner is None:
            break
        found = inner
    return visible(getattr(found, "strerror", None) or str(found))
