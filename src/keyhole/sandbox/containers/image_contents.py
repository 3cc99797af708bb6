"""Facts about an image that its sandboxes need: accounts, and the places of trusted roots.

Read from a container that is never started, once for each image; an image id never changes its
content, so the result is cached. Called outside; nothing of the image is run.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.sandbox.containers.container_spec import labels
from keyhole.sandbox.containers.engine_client import EngineFailed, NotInEngine
from keyhole.sandbox.environment import PATH
from keyhole.sandbox.files.paths import parents
from keyhole.sandbox.files.trust_paths import BUNDLES, TRUSTSTORES
from keyhole.system.interrupts import delay_interrupts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from keyhole.sandbox.containers.engine import Engine
    from keyhole.sandbox.containers.engine_values import EngineImage

_USUAL_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
"""The place of the bundle in an image that has none: most programs look there."""
_JVMS = ("/usr/lib/jvm/default-java", "/usr/lib/jvm/default-jvm", "/usr/lib/jvm/jre")
"""The default JVM of Debian, Alpine and Fedora; official images name theirs in JAVA_HOME."""
_OF_A_JVM = ("lib/security/cacerts", "jre/lib/security/cacerts")
_LINKS = ".links"
_MAX_ACCOUNTS = 1 << 18
"""Characters of a passwd or group file of an image; some thousand lines."""


class ImageContents(Struct, frozen=True):
    """Facts about one image."""

    passwd: str
    group: str
    bundles: tuple[str, ...]
    truststores: tuple[str, ...]


def read_image_contents(engine: Engine, image: EngineImage, kept: Path) -> ImageContents:
    """Read an image's contents, or the cached result below `kept`."""
    file = _file_of(image, kept)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        table = json.loads(file.read_text("utf-8"))
        return ImageContents(
            str(table["passwd"]),
            str(table["group"]),
            tuple(table["bundles"]),
            tuple(table["truststores"]),
        )
    found = _ask(engine, image)
    _keep(file, {name: getattr(found, name) for name in ImageContents.__struct_fields__})
    return found


def forget_image(image: EngineImage, kept: Path) -> None:
    """Remove the cached facts of an image that is gone."""
    for kind in ("", _LINKS):
        _file_of(image, kept, kind).unlink(missing_ok=True)


def image_links(
    engine: Engine, image: EngineImage, kept: Path, places: Iterable[str]
) -> dict[str, str]:
    """The links on the way to these paths of an image, and the final target of each."""
    file = _file_of(image, kept, _LINKS)
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        known = {str(k): str(v) for k, v in json.loads(file.read_text("utf-8")).items()}
    wanted = {way for place in places for way in (place, *parents(place)) if way != "/"}
    if asked := sorted(wanted - known.keys()):
        with _never_started(engine, image) as container:
            known |= {path: engine.link(container, path) for path in asked}
        _keep(file, known)
    return {path: to for path, to in known.items() if path in wanted and to}


def programs_of(engine: Engine, image: EngineImage, names: Iterable[str]) -> frozenset[str]:
    """Which of these programs are on the image's PATH."""
    places = [p for p in image.environment.get("PATH", PATH).split(":") if p.startswith("/")]
    with _never_started(engine, image) as container:
        found = (n for n in names if any(engine.has(container, f"{p}/{n}") for p in places))
        return frozenset(found)


@contextlib.contextmanager
def _never_started(engine: Engine, image: EngineImage) -> Iterator[str]:
    config = {
        "Image": image.id,
        "Entrypoint": ["/never-started"],
        "Labels": labels("look"),
        "HostConfig": {"NetworkMode": "none", "CapDrop": ["ALL"]},
    }
    container = ""
    try:
        with delay_interrupts():
            container = engine.create(config)
        yield container
    finally:
        if container:
            with delay_interrupts():
                engine.remove(container)


def _file_of(image: EngineImage, kept: Path, kind: str = "") -> Path:
    return kept / f"{image.id.replace(':', '-')}{kind}.json"


def _keep(file: Path, table: Mapping[str, object]) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = file.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(table), "utf-8")
    temporary.replace(file)


def _ask(engine: Engine, image: EngineImage) -> ImageContents:
    with _never_started(engine, image) as container:
        bundles = tuple(path for path in BUNDLES if engine.has(container, path))
        homes = [*_JVMS, *filter(None, [image.environment.get("JAVA_HOME", "").rstrip("/")])]
        stores = [*TRUSTSTORES, *(f"{home}/{store}" for home in homes for store in _OF_A_JVM)]
        return ImageContents(
            _text(engine, container, "/etc/passwd"),
            _text(engine, container, "/etc/group"),
            bundles or (_USUAL_BUNDLE,),
            tuple(dict.fromkeys(s for s in stores if s[:1] == "/" and engine.has(container, s))),
        )


def _text(engine: Engine, container: str, path: str) -> str:
    try:
        content = engine.read(container, path)
    except NotInEngine:
        return ""
    if len(content) > _MAX_ACCOUNTS:
        raise EngineFailed(f"{path} of the image is over {_MAX_ACCOUNTS} bytes")
    return content.decode("utf-8", "replace")
