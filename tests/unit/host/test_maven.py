"""The preset `maven`, with its XML and its super POM."""

from __future__ import annotations

import re
import subprocess
import zipfile
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest

from keyhole.host import maven, maven_xml, super_pom
from keyhole.host.settings_file import MAX_FILE
from keyhole.model.errors import Refused
from tests.rigs.host.building import (
    PASSWORD,
    grants,
    host,
    injections,
    needs,
    program,
    revealed,
    shown,
    this_host,
)

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.host.host_environment import HostEnvironment

POM = "org/apache/maven/model/pom-4.0.0.xml"
REPOSITORY = "<repository><id>central</id><url>https://central.example.org/m2</url></repository>"
SUPER = (
    f"<project><repositories>{REPOSITORY}</repositories>"
    "<pluginRepositories><pluginRepository><id>central</id>"
    "<url>https://central.example.org/m2</url></pluginRepository></pluginRepositories></project>"
)
NAMESPACE = ' xmlns="http://maven.apache.org/SETTINGS/1.2.0"'


def maven_host(
    tmp_path: Path, settings: str | None = None, *, pom: str | None = SUPER, **env: str
) -> HostEnvironment:
    """A host with a Maven that carries this super POM, and these user settings."""
    program(tmp_path / "maven" / "bin" / "mvn", "exit 1")
    (tmp_path / "maven" / "lib").mkdir(exist_ok=True)
    with zipfile.ZipFile(tmp_path / "maven/lib/maven-model-builder-3.x.jar", "w") as jar:
        if pom is not None:
            jar.writestr(POM, pom)
    home = {".m2/settings.xml": f"<settings{NAMESPACE}>{settings}</settings>"} if settings else {}
    return host(tmp_path, home=home, env={"PATH": f"{tmp_path}/maven/bin", **env})


def mirror(name: str, of: str = "*", more: str = "") -> str:
    return (
        f"<mirrors><mirror><id>{name}</id><mirrorOf>{of}</mirrorOf>"
        f"<url>https://{name}.corp.example/m2/</url>{more}</mirror></mirrors>"
    )


def server(name: str, password: str, user: str = "me") -> str:
    return (
        f"<servers><server><id>{name}</id><username>{user}</username>"
        f"<password>{password}</password></server></servers>"
    )


# ── the built-in repository ──────────────────────────────────────────────────────────────────────


def test_the_repository_of_the_real_maven_is_learnt(tmp_path: Path) -> None:
    """Compared with the one that Maven says it cannot reach when it is told to stay offline."""
    here = this_host(tmp_path)
    run = [needs("mvn"), "-B", "-o", f"-Duser.home={here.home}", "org.example:nothing:1:go"]
    said = subprocess.run(run, capture_output=True, text=True, check=False, cwd="/").stdout
    (url,) = set(re.findall(r"Cannot access central \(([^)]+)\)", said))
    assert super_pom.repositories(here) == (("central", url),)
    preset = maven.learn(here)
    assert list(grants(preset)) == [urlsplit(url).netloc]
    assert preset.sources == ("Maven's built-in default",)
    assert preset.files == ()


def test_the_super_pom_is_found_beside_the_program_or_where_debian_keeps_it(tmp_path: Path) -> None:
    assert super_pom.repositories(maven_host(tmp_path)) == (
        ("central", "https://central.example.org/m2"),
    )
    jar = tmp_path / "root" / "usr/share/maven/lib/maven-model-builder-3.x.jar"
    jar.parent.mkdir(parents=True)
    (tmp_path / "maven/lib/maven-model-builder-3.x.jar").rename(jar)
    assert super_pom.repositories(host(tmp_path)) != ()
    home = host(tmp_path / "other", env={"MAVEN_HOME": str(tmp_path / "root/usr/share/maven")})
    assert super_pom.repositories(home) != ()


def test_a_maven_that_the_sandbox_can_write_is_not_believed(tmp_path: Path) -> None:
    here = maven_host(tmp_path)
    assert maven.learn(here)
    env = {**here.env, "MAVEN_HOME": str(tmp_path / "maven")}
    with pytest.raises(Refused):
        maven.learn(host(tmp_path, env=env, writable=(tmp_path / "maven",)))


@pytest.mark.parametrize("pom", [None, "", "<broken", "x" * (MAX_FILE + 1), "<!DOCTYPE x>" + SUPER])
def test_a_jar_without_a_readable_super_pom_is_passed_over(tmp_path: Path, pom: str | None) -> None:
    assert super_pom.repositories(maven_host(tmp_path, pom=pom)) == ()


def test_a_jar_that_is_no_part_of_maven_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = maven_host(tmp_path)
    assert super_pom.repositories(here) != ()
    monkeypatch.setattr(super_pom, "MAX_JAR", 10)
    assert super_pom.repositories(here) == ()


def test_what_is_no_jar_is_passed_over(tmp_path: Path) -> None:
    here = maven_host(tmp_path)
    (tmp_path / "maven/lib/maven-model-builder-3.x.jar").write_bytes(b"not a jar")
    assert super_pom.repositories(here) == ()


# ── settings ─────────────────────────────────────────────────────────────────────────────────────


def test_a_mirror_of_everything_stands_in_for_the_built_in_repository(tmp_path: Path) -> None:
    preset = maven.learn(maven_host(tmp_path, mirror("nexus")))
    assert grants(preset) == {"nexus.corp.example": ["GET /**"]}
    assert preset.sources == ("~/.m2/settings.xml",)
    inside = ElementTree.fromstring(dict(preset.files)[".m2/settings.xml"])  # noqa: S314 - our own
    assert inside.findtext("mirrors/mirror/url") == "https://nexus.corp.example/m2/"
    assert inside.findtext("mirrors/mirror/mirrorOf") == "*"


@pytest.mark.parametrize(
    ("of", "is_central"),
    [
        ("*", True), ("central", True), ("external:*", True), ("a, central", True),
        ("*,!central", False), ("other", False), ("", False), ("external:http:*", False),
    ],
)  # fmt: skip
def test_the_built_in_repository_is_granted_unless_it_is_mirrored(
    tmp_path: Path, of: str, is_central: bool
) -> None:
    preset = maven.learn(maven_host(tmp_path, mirror("nexus", of)))
    assert ("central.example.org" not in grants(preset)) is is_central


def test_a_mirror_that_is_there_to_block_is_no_host(tmp_path: Path) -> None:
    preset = maven.learn(maven_host(tmp_path, mirror("x", more="<blocked>true</blocked>")))
    assert list(grants(preset)) == ["central.example.org"]


def test_repositories_of_active_profiles_are_granted(tmp_path: Path) -> None:
    def profile(name: str, more: str = "") -> str:
        return (
            f"<profile><id>{name}</id>{more}<repositories><repository><id>r</id>"
            f"<url>https://{name}.corp.example/</url></repository></repositories>"
            "<pluginRepositories><pluginRepository><id>p</id>"
            f"<url>https://{name}-plugins.corp.example/</url></pluginRepository>"
            "</pluginRepositories></profile>"
        )

    activation = "<activation><activeByDefault>true</activeByDefault></activation>"
    settings = (
        f"<profiles>{profile('idle')}{profile('chosen')}{profile('usual', activation)}</profiles>"
        "<activeProfiles><activeProfile>chosen</activeProfile></activeProfiles>"
    )
    preset = maven.learn(maven_host(tmp_path, settings))
    assert list(grants(preset)) == [
        "chosen.corp.example", "chosen-plugins.corp.example",
        "usual.corp.example", "usual-plugins.corp.example", "central.example.org",
    ]  # fmt: skip
    inside = ElementTree.fromstring(dict(preset.files)[".m2/settings.xml"])  # noqa: S314 - our own
    assert len(inside.findall("profiles/profile/repositories/repository")) == 2
    assert len(inside.findall("profiles/profile/pluginRepositories/pluginRepository")) == 2


def test_a_repository_that_a_mirror_stands_for_is_told_inside_but_not_granted(
    tmp_path: Path,
) -> None:
    profile = (
        "<profiles><profile><activation><activeByDefault>true</activeByDefault></activation>"
        "<repositories><repository><id>team</id><url>https://team.corp.example/</url></repository>"
        "</repositories></profile></profiles>"
    )
    mirrored = maven.learn(maven_host(tmp_path, mirror("nexus") + profile))
    assert list(grants(mirrored)) == ["nexus.corp.example"]
    assert "https://team.corp.example/" in dict(mirrored.files)[".m2/settings.xml"]
    aside = maven.learn(maven_host(tmp_path, mirror("nexus", "*,!team") + profile))
    assert list(grants(aside)) == ["nexus.corp.example", "team.corp.example"]


def test_the_real_maven_follows_the_settings_that_are_given_inside(tmp_path: Path) -> None:
    settings = mirror("nexus") + server("nexus", PASSWORD)
    text = dict(maven.learn(maven_host(tmp_path, settings)).files)[".m2/settings.xml"]
    inside = tmp_path / "inside.xml"
    inside.write_text(text)
    run = [needs("mvn"), "-B", "-o", "-s", str(inside), f"-Duser.home={tmp_path}"]
    said = subprocess.run(
        [*run, "org.example:nothing:1:go"], capture_output=True, text=True, check=False, cwd="/"
    )
    assert "Cannot access nexus (https://nexus.corp.example/m2/)" in said.stdout


def test_a_server_has_the_credential_of_the_mirror_of_its_id(tmp_path: Path) -> None:
    settings = mirror("nexus") + server("nexus", PASSWORD) + server("other", "else")
    preset = maven.learn(maven_host(tmp_path, settings))
    assert injections(preset) == {"nexus.corp.example": "header Authorization: Basic me:{secret}"}
    assert grants(preset) == {"nexus.corp.example": ["GET /m2/**"]}
    assert revealed(preset, "nexus.corp.example") == PASSWORD
    assert PASSWORD not in shown(preset)


def test_variables_are_replaced_as_maven_does(tmp_path: Path) -> None:
    settings = mirror("nexus") + server("nexus", "${env.NEXUS_PASSWORD}")
    preset = maven.learn(maven_host(tmp_path, settings, NEXUS_PASSWORD=PASSWORD))
    assert revealed(preset, "nexus.corp.example") == PASSWORD
    unset = maven.learn(maven_host(tmp_path, settings))
    assert revealed(unset, "nexus.corp.example") is None
    assert "names what is not set" in unset.notes[0]


@pytest.mark.parametrize(
    ("password", "user", "note"),
    [
        ("{COQLCE6DU6GtcS5P=}", "me", "encrypted"),
        ("note {COQLCE6DU6GtcS5P=}", "me", "encrypted"),
        (PASSWORD, "me:too", "without ':'"),
    ],
)
def test_a_login_that_cannot_be_used_is_noted(
    tmp_path: Path, password: str, user: str, note: str
) -> None:
    preset = maven.learn(maven_host(tmp_path, mirror("nexus") + server("nexus", password, user)))
    assert injections(preset) == {}
    assert note in preset.notes[0]
    assert password not in shown(preset)


def test_braces_that_are_escaped_are_part_of_a_password(tmp_path: Path) -> None:
    settings = mirror("nexus") + server("nexus", r"a\{b\}")
    assert injections(maven.learn(maven_host(tmp_path, settings))) != {}


@pytest.mark.parametrize(
    "declaration",
    [
        '<!DOCTYPE s [<!ENTITY x SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE s SYSTEM "https://hostile.example/x.dtd">',
    ],
)
def test_a_document_type_is_refused(tmp_path: Path, declaration: str) -> None:
    text = f"<settings>{mirror('nexus')}</settings>"
    assert maven_xml.parse(declaration + text) is None
    assert maven_xml.parse(text) is not None
    here = maven_host(tmp_path)
    (here.home / ".m2").mkdir()
    (here.home / ".m2" / "settings.xml").write_text(declaration + text)
    preset = maven.learn(here)
    assert list(grants(preset)) == ["central.example.org"]
    assert preset.notes == ("~/.m2/settings.xml is not read: its XML is refused",)


def test_ids_are_written_inside_without_becoming_markup(tmp_path: Path) -> None:
    preset = maven.learn(maven_host(tmp_path, mirror("a&lt;b&gt;").replace("//a&lt;b&gt;", "//x")))
    inside = ElementTree.fromstring(dict(preset.files)[".m2/settings.xml"])  # noqa: S314 - our own
    assert inside.findtext("mirrors/mirror/id") == "a<b>"


def test_without_maven_and_settings_the_person_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"name your repository under \[egress\] allow"):
        maven.learn(host(tmp_path))
