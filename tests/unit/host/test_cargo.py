"""The preset `cargo`, with its settings and its cache."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from keyhole.host import cargo, cargo_cache
from keyhole.host.fetch_location import FetchLocation
from keyhole.host.preset_draft import PresetDraft
from keyhole.model.errors import Refused
from tests.rigs.gateway.origins import Origin, Service
from tests.rigs.gateway.talk import Message, ok
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
    write,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyhole.host.host_environment import HostEnvironment
    from keyhole.inject.preset import Preset

COMPLAINT = "failed to download from `https://index.example.org/config.json`"


def cached(index: str, dl: str, api: str | None = None, mark: str = "0") -> dict[str, str]:
    """What cargo keeps of an index that it has used."""
    tree = {"dl": dl, **({"api": api} if api else {})}
    name = f".cargo/registry/index/{index}-{mark * 16}/config.json"
    return {name: json.dumps(tree)}


DEFAULT = cached("index.example.org", "https://static.example.org/crates", "https://example.org")


def cargo_host(tmp_path: Path, home: dict[str, str], **env: str) -> HostEnvironment:
    """A host whose cargo complains about an index at example.org."""
    program(tmp_path / "bin" / "cargo", f"echo '{COMPLAINT}' >&2; exit 101")
    return host(tmp_path, home=home, env={"PATH": f"{tmp_path}/bin:/bin", **env})


def config(preset: Preset) -> dict[str, object]:
    return tomllib.loads(dict(preset.files)[".cargo/config.toml"])


# ── the real cargo ───────────────────────────────────────────────────────────────────────────────


def test_the_real_cargo_names_its_default_index_without_asking_anyone(tmp_path: Path) -> None:
    """Compared with what it says when its proxy is a port where nobody listens."""
    here = this_host(tmp_path, env=rustup())
    found = cargo_cache.default_index(here)
    env = {
        **rustup(), "PATH": os.environ["PATH"], "HOME": str(tmp_path), "CARGO_NET_RETRY": "0",
        "CARGO_HOME": str(tmp_path / "empty"), "CARGO_HTTP_PROXY": "http://127.0.0.1:1",
    }  # fmt: skip
    run = [needs("cargo"), "search", "x"]
    said = subprocess.run(run, capture_output=True, text=True, check=False, cwd="/", env=env)
    assert found is not None
    assert f"{found}config.json" in said.stderr
    assert list(here.home.iterdir()) == []


def test_the_default_of_the_real_cargo_is_granted_once_its_cache_knows_the_rest(
    tmp_path: Path,
) -> None:
    needs("cargo")
    here = this_host(tmp_path, env=rustup())
    with pytest.raises(Refused, match="run `cargo search anything` once"):
        cargo.learn(here)
    index = FetchLocation.parse(str(cargo_cache.default_index(here))).pattern.name
    for name, text in cached(index, "https://static.example.org/crates").items():
        write(here.home / name, text)
    assert list(grants(cargo.learn(here))) == [index, "static.example.org"]


def test_a_cache_that_the_real_cargo_wrote_is_understood(tmp_path: Path) -> None:
    needs("cargo")
    with serve({"/index/config.json": '{"dl": "https://crates.corp.example/dl/{crate}"}'}) as port:
        index = f"http://localhost:{port}/index/"
        text = f'[registries.corp]\nindex = "sparse+{index}"\n'
        here = this_host(tmp_path, env=rustup())
        write(here.home / ".cargo" / "config.toml", text)
        env = {"PATH": os.environ["PATH"], "HOME": str(here.home), **rustup()}
        run = [needs("cargo"), "info", "--registry", "corp", "anything"]
        subprocess.run(run, capture_output=True, check=False, cwd="/", env=env)
        found = cargo_cache.downloads(PresetDraft("cargo", here), FetchLocation.parse(index))
    assert found == cargo_cache.Downloads(("https://crates.corp.example/dl",))


def test_the_real_cargo_sends_a_token_with_what_is_given_inside(tmp_path: Path) -> None:
    """Else a registry that wants one could not be used: the gateway writes only what it is sent."""
    needs("cargo")
    config = '{"dl": "http://localhost/dl", "auth-required": true}'
    with serve({"/config.json": config}, token=cargo.PLACEHOLDER) as port:
        text = f'[registries.corp]\nindex = "sparse+http://localhost:{port}/"\n'
        tokens = f'[registries.corp]\ntoken = "{PASSWORD}"\n'
        home = {".cargo/config.toml": text, ".cargo/credentials.toml": tokens}
        preset = cargo.learn(cargo_host(tmp_path, home))
        inside = tmp_path / "inside"
        for name, given in preset.files:
            write(inside / name, given)
        bare = {"PATH": os.environ["PATH"], "HOME": str(inside), **rustup()}
        run = [needs("cargo"), "info", "--registry", "corp", "anything"]
        with_token, without = (
            subprocess.run(run, capture_output=True, text=True, check=False, cwd="/", env=env)
            for env in (bare | dict(preset.env), bare)
        )
    assert "could not find `anything` in registry" in with_token.stderr
    assert "could not find" not in without.stderr  # control: it was let in by the token


def rustup() -> dict[str, str]:
    """A rustup whose toolchains are in the home of whoever runs the tests."""
    home = os.environ.get("RUSTUP_HOME") or os.path.expanduser("~/.rustup")
    return {"RUSTUP_HOME": home} if os.path.isdir(home) else {}


@contextmanager
def serve(pages: dict[str, str], token: str | None = None) -> Iterator[int]:
    """A web server on the loopback with these pages, for whoever has the token."""

    def answer(message: Message) -> bytes:
        challenge = b"WWW-Authenticate: Cargo"
        if token not in {None, message.one("authorization")}:
            return ok(b"", challenge, status=b"401 Unauthorized")
        body = pages.get(message.target, "").encode()
        return ok(body, challenge, status=b"200 OK" if body else b"404 Not Found")

    origin = Origin(Service(answer))
    try:
        yield origin.port
    finally:
        origin.close()


# ── the default ──────────────────────────────────────────────────────────────────────────────────


def test_the_default_is_granted_with_the_hosts_of_its_crates(tmp_path: Path) -> None:
    preset = cargo.learn(cargo_host(tmp_path, DEFAULT))
    assert grants(preset) == {
        "index.example.org": ["GET /**"],
        "static.example.org": ["GET /**"],
        "example.org": ["GET /**"],
    }
    assert (preset.env, preset.files, preset.notes) == ((), (), ())
    assert preset.sources == ("cargo's built-in default", "cargo's cache of the index")


def test_a_registry_that_a_project_once_brought_into_the_cache_is_not_granted(
    tmp_path: Path,
) -> None:
    """A clone's .cargo/config.toml can name any; `cargo fetch` there leaves it in the cache."""
    hostile = cached("hostile.example", "https://hostile.example/dl")
    assert "hostile.example" not in grants(cargo.learn(cargo_host(tmp_path, DEFAULT | hostile)))
    text = '[registries.x]\nindex = "sparse+https://hostile.example/"\n'
    named = cargo_host(tmp_path, DEFAULT | hostile | {".cargo/config.toml": text})
    assert "hostile.example" in grants(cargo.learn(named))  # control: once the user names it


def test_two_caches_of_one_host_that_disagree_are_both_in_doubt(tmp_path: Path) -> None:
    other = cached("index.example.org", "https://hostile.example/dl", mark="1")
    with pytest.raises(Refused):
        cargo.learn(cargo_host(tmp_path, DEFAULT | other))
    same = {name.replace("0" * 16, "1" * 16): text for name, text in DEFAULT.items()}
    assert cargo.learn(cargo_host(tmp_path / "same", DEFAULT | same))


def test_the_token_for_publishing_is_not_used(tmp_path: Path) -> None:
    home = DEFAULT | {".cargo/credentials.toml": f'[registry]\ntoken = "{PASSWORD}"\n'}
    assert injections(cargo.learn(cargo_host(tmp_path, home))) == {}


def test_without_cargo_or_a_place_of_its_own_to_ask_it_the_default_is_not_known(
    tmp_path: Path,
) -> None:
    assert cargo_cache.default_index(host(tmp_path)) is None
    here = cargo_host(tmp_path, {})
    assert cargo_cache.default_index(here) == "https://index.example.org/"
    env = {**here.env, "TMPDIR": str(tmp_path / "missing")}
    assert cargo_cache.default_index(host(tmp_path, env=env)) is not None


# ── registries of one's own ──────────────────────────────────────────────────────────────────────

CORP = '[registries.my-corp]\nindex = "sparse+https://cargo.corp.example/index/"\n'


def test_a_registry_of_ones_own_is_granted_with_its_token(tmp_path: Path) -> None:
    home = {
        ".cargo/config.toml": CORP,
        ".cargo/credentials.toml": f'[registries.my-corp]\ntoken = "{PASSWORD}"\n',
        **cached(
            "cargo.corp.example",
            "https://cargo.corp.example/dl/{crate}/{version}.crate",
            "https://api.corp.example/",
        ),
    }
    preset = cargo.learn(cargo_host(tmp_path, home))
    assert grants(preset) == {
        "cargo.corp.example": ["GET /index/**", "GET /dl/**"],
        "api.corp.example": ["GET /**"],
    }
    # Raw, without a scheme; and to the registry's own host alone.
    assert injections(preset) == {"cargo.corp.example": "header Authorization: {secret}"}
    assert revealed(preset, "cargo.corp.example") == PASSWORD
    assert preset.env == (("CARGO_REGISTRIES_MY_CORP_TOKEN", cargo.PLACEHOLDER),)
    assert config(preset) == {
        "registries": {"my-corp": {"index": "sparse+https://cargo.corp.example/index/"}},
        "registry": {"global-credential-providers": ["cargo:token"]},
    }
    assert "~/.cargo/credentials.toml" in preset.sources
    assert PASSWORD not in shown(preset)


def test_variables_name_registries_and_tokens(tmp_path: Path) -> None:
    env = {
        "CARGO_REGISTRIES_MY_CORP_INDEX": "sparse+https://variable.corp.example/",
        "CARGO_REGISTRIES_MY_CORP_TOKEN": PASSWORD,
        "CARGO_REGISTRIES_NEW_INDEX": "sparse+https://new.corp.example/",
    }
    preset = cargo.learn(cargo_host(tmp_path, {".cargo/config.toml": CORP}, **env))
    assert config(preset)["registries"] == {
        "my-corp": {"index": "sparse+https://variable.corp.example/"},
        "new": {"index": "sparse+https://new.corp.example/"},
    }
    assert revealed(preset, "variable.corp.example") == PASSWORD
    assert "CARGO_REGISTRIES_MY_CORP_TOKEN" in preset.sources


def test_a_registry_that_cargo_has_not_used_yet_is_granted_with_a_note(tmp_path: Path) -> None:
    preset = cargo.learn(cargo_host(tmp_path, {".cargo/config.toml": CORP}))
    assert list(grants(preset)) == ["cargo.corp.example"]
    assert "may keep its crates on another host" in preset.notes[0]


def test_a_mirror_stands_in_for_the_default(tmp_path: Path) -> None:
    text = (
        '[source.crates-io]\nreplace-with = "mirror"\n'
        '[source.mirror]\nregistry = "sparse+https://mirror.corp.example/"\n'
    )
    preset = cargo.learn(cargo_host(tmp_path, DEFAULT | {".cargo/config.toml": text}))
    assert list(grants(preset)) == ["mirror.corp.example"]
    assert config(preset) == {
        "source": {
            "crates-io": {"replace-with": "mirror"},
            "mirror": {"registry": "sparse+https://mirror.corp.example/"},
        }
    }


def test_the_home_may_be_elsewhere_and_the_old_name_wins(tmp_path: Path) -> None:
    write(tmp_path / "c" / "config", CORP)
    write(tmp_path / "c" / "config.toml", CORP.replace("cargo.corp", "new.corp"))
    preset = cargo.learn(cargo_host(tmp_path, {}, CARGO_HOME=str(tmp_path / "c")))
    assert list(grants(preset)) == ["cargo.corp.example"]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ('[registries.x]\nindex = "https://git.corp.example/index"\n', "kept in git"),
        ('[registries.x]\nindex = "sparse+https://192.0.2.7/"\n', "IP address"),
        ("[registries", "syntax"),
        ("registries = 1\n[source.x]\nregistry = 1\n[source.y]\n", ""),
    ],
)
def test_what_cannot_be_used_is_left_out_with_a_note(tmp_path: Path, text: str, note: str) -> None:
    preset = cargo.learn(cargo_host(tmp_path, DEFAULT | {".cargo/config.toml": text}))
    assert "index.example.org" in grants(preset)
    assert note in "".join(preset.notes)
    assert preset.files == ()


def test_a_name_or_token_that_cannot_be_written_is_left_out(tmp_path: Path) -> None:
    text = '[registries."a.b]"]\nindex = "sparse+https://cargo.corp.example/"\n'
    home = {
        ".cargo/config.toml": text + CORP,
        ".cargo/credentials.toml": '[registries.my-corp]\ntoken = "a\\u0007b"\n',
    }
    preset = cargo.learn(cargo_host(tmp_path, home))
    assert config(preset) == tomllib.loads(CORP)
    assert injections(preset) == {}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"dl": 1}', "nonsense"])
def test_a_cache_of_another_shape_is_passed_over(tmp_path: Path, text: str) -> None:
    name = ".cargo/registry/index/index.example.org-0000000000000000/config.json"
    with pytest.raises(Refused):
        cargo.learn(cargo_host(tmp_path, {name: text}))
