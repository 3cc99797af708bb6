"""The repository that is built into Maven, read from Maven's own super POM.

Called by `maven`. Every Maven carries the file in one of its jars; nothing is run to read it.
"""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

from keyhole.host.maven_xml import children, parse, text_of
from keyhole.host.settings_file import MAX_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyhole.host.host_environment import HostEnvironment

_ENTRY = "org/apache/maven/model/pom-4.0.0.xml"
_JARS = ("maven-model-builder-*.jar", "maven-impl-*.jar")
_PLACES = ("/usr/share/maven/lib", "/usr/share/maven-repo/org/apache/maven/maven-model-builder/3.x")
_HOME_VARIABLES = ("MAVEN_HOME", "M2_HOME")

MAX_JAR = 16 * 1024 * 1024
"""Bytes of a jar that is opened; Maven's own have a few hundred thousand."""


def home(surroundings: HostEnvironment) -> Path | None:
    """The installation directory of this host's `mvn`."""
    program = surroundings.program("mvn")
    if program is not None:
        return program.resolve().parent.parent
    named = (surroundings.env.get(name, "") for name in _HOME_VARIABLES)
    return next((surroundings.expand(n) for n in named if n.startswith("/")), None)


def repositories(surroundings: HostEnvironment) -> tuple[tuple[str, str], ...]:
    """The ids and URLs of the repositories in the first super POM found."""
    for jar in _jars(surroundings):
        project = parse(_entry(jar)) if surroundings.trusts(jar) else None
        if project is not None:
            found = tuple(
                (text_of(repository, "id"), text_of(repository, "url"))
                for kind in ("repositories", "pluginRepositories")
                for group in children(project, kind)
                for repository in children(group)
            )
            return tuple(dict.fromkeys(found))
    return ()


def _jars(surroundings: HostEnvironment) -> Iterator[Path]:
    installed = home(surroundings)
    places = [surroundings.at(place) for place in _PLACES]
    for place in [installed / "lib", *places] if installed else places:
        for pattern in _JARS:
            yield from sorted(place.glob(pattern))


def _entry(jar: Path) -> str | None:
    try:
        if jar.stat().st_size > MAX_JAR:
            return None
        with zipfile.ZipFile(jar) as archive, archive.open(_ENTRY) as file:
            data = file.read(MAX_FILE + 1)
    except (OSError, KeyError, zipfile.BadZipFile, NotImplementedError, RuntimeError):
        return None
    return data.decode("utf-8", "replace") if len(data) <= MAX_FILE else None
