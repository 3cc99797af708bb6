"""What every file of the catalogue must hold, whoever adds it (I1, I3, I6)."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from publicsuffixlist import PSLFILE, PublicSuffixList

from keyhole.inject.field_families import is_claim
from keyhole.inject.injection import (
    BasicInjection,
    GoogleInjection,
    HeaderInjection,
    QueryInjection,
    SignatureInjection,
)
from keyhole.inject.placeholder import MARKS
from keyhole.inject.sigv4 import WRITTEN_NAMES
from keyhole.inject.slots import GLOBAL_SLOTS, Slot, SlotLocation
from keyhole.inject.table_values import Confidence
from keyhole.model.host import DEFAULT_PORT, Host, HostPattern
from keyhole.model.rule import AccessRule
from tests.rigs.inject.shelf import NAMES, REPOSITORY, granted, service, text_of

if TYPE_CHECKING:
    from keyhole.inject.catalogue import HostTemplate

each_service = pytest.mark.parametrize("name", NAMES)


def places(name: str) -> list[tuple[str, HostTemplate]]:
    return [(f"{name}.host[{i}]", host) for i, host in enumerate(service(name).hosts)]


def test_the_catalogue_has_at_least_forty_services() -> None:
    assert len(NAMES) >= 40


@each_service
def test_an_entry_that_was_tested_has_the_day(name: str) -> None:
    entry = service(name)
    assert entry.looked_at or entry.sure is not Confidence.TESTED


@each_service
def test_a_service_loads_under_a_plain_name(name: str) -> None:
    assert service(name).name == name
    assert re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", name)


@each_service
def test_every_host_grants_something_and_the_first_takes_the_credential(name: str) -> None:
    """A host that grants nothing is there to be refused at once, so it gets no credential; the
    first takes the hosts that a policy names."""
    for place, host in places(name):
        assert host.allow or host.api_read or host.git or not host.inject, place
    assert service(name).hosts[0].inject


# ── hosts ─────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def suffix_list() -> tuple[PublicSuffixList, tuple[str, ...]]:
    lines = Path(PSLFILE).read_text("utf-8").splitlines()
    rules = tuple(line.split()[0] for line in lines if line and not line.startswith("//"))
    return PublicSuffixList(), rules


def covers_a_public_suffix(pattern: HostPattern) -> bool:
    suffixes, rules = suffix_list()
    if suffixes.is_public(pattern.host.name):
        return True
    return pattern.subdomains and any(rule.endswith(f".{pattern.host}") for rule in rules)


@each_service
def test_no_host_is_or_covers_a_public_suffix(name: str) -> None:
    """I3: anyone can have a name below one."""
    for place, host in places(name):
        assert not any(covers_a_public_suffix(p) for p in host.hosts), place


@pytest.mark.parametrize("wide", ["*.com", "*.co.uk", "*.github.io", "*.amazonaws.com"])
def test_a_wildcard_over_a_public_suffix_is_seen(wide: str) -> None:
    """The control of the test above."""
    assert covers_a_public_suffix(HostPattern.parse(wide))
    assert not covers_a_public_suffix(HostPattern.parse("*.api.example.com"))


@each_service
def test_a_credential_goes_to_hosts_that_are_named_in_full_at_the_usual_port(name: str) -> None:
    """I4: under a wildcard the sandbox would choose part of where a credential goes."""
    for place, host in places(name):
        assert all(p.port == DEFAULT_PORT for p in host.hosts), place
        assert not (host.inject and any(p.subdomains for p in host.hosts)), place


@each_service
def test_a_host_stands_once_in_a_service(name: str) -> None:
    patterns = [p for host in service(name).hosts for p in host.hosts]
    for i, one in enumerate(patterns):
        assert not any(one.overlaps(two) for two in patterns[i + 1 :]), one


ASKED = {
    "pip": ([sys.executable, "-m", "pip", "download", "--help"], r"default\s+(https?://[^\s)]+)"),
    "npm": (["npm", "config", "get", "registry"], r"(https?://\S+)"),
    "apt-get": (["apt-get", "indextargets", "--format", "$(REPO_URI)"], r"(https?://\S+)"),
}


def indexes_of(tool: str) -> set[Host]:
    """The hosts that a package manager of this machine says it reads from."""
    argv, address = ASKED[tool]
    program = shutil.which(argv[0])
    if program is None:
        pytest.skip(f"no {tool} here")
    run = subprocess.run([program, *argv[1:]], capture_output=True, text=True, timeout=60)
    authorities = [url.split("/")[2] for url in re.findall(address, run.stdout)]
    return {Host.parse(a.rpartition("@")[2].partition(":")[0]) for a in authorities}


@pytest.mark.parametrize("tool", ASKED)
def test_no_public_package_index_is_in_the_catalogue(tool: str) -> None:
    """Indexes come from the host's own settings at run time; none is written down here either."""
    indexes = indexes_of(tool)
    if not indexes:
        pytest.skip(f"{tool} names no index here")
    for name in NAMES:
        for place, host in places(name):
            clash = [i for i in indexes for p in host.hosts if p.matches(i)]
            assert not clash, place


# ── credentials ───────────────────────────────────────────────────────────────────────────────────


def written_slots(host: HostTemplate) -> list[Slot]:
    """The slots that a host's injections fill."""
    slots = []
    for injection in host.inject:
        match injection:
            case HeaderInjection():
                slots.append(Slot(SlotLocation.HEADER, injection.header.lower()))
            case BasicInjection() | GoogleInjection():
                slots.append(Slot(SlotLocation.HEADER, "authorization"))
            case SignatureInjection():
                slots += [
                    Slot(SlotLocation.HEADER, name.decode()) for name in sorted(WRITTEN_NAMES)
                ]
            case QueryInjection():
                slots.append(Slot(SlotLocation.QUERY, injection.key.lower()))
    return slots


@each_service
def test_each_slot_that_is_filled_was_emptied_and_is_filled_once(name: str) -> None:
    """I6: the client's own value is gone before ours is written, and none is kept beside it."""
    for place, host in places(name):
        slots = written_slots(host)
        assert len(set(slots)) == len(slots), place
        for slot in slots:
            emptied = (*GLOBAL_SLOTS, *host.strip)
            assert any(s.covers(slot.place, slot.name) for s in emptied), (place, str(slot))
            assert not any(k.covers(slot.place, slot.name) for k in host.keep), (place, str(slot))


@each_service
def test_no_credential_is_written_into_a_query(name: str) -> None:
    """Servers echo addresses (facts §0.5)."""
    for place, host in places(name):
        assert not any(isinstance(i, QueryInjection) for i in host.inject), place


@each_service
def test_what_is_kept_would_otherwise_be_emptied(name: str) -> None:
    """A `keep` that keeps nothing is a misspelling."""
    for place, host in places(name):
        for kept in host.keep:
            beginning = kept.name.removesuffix("*")
            emptied = any(s.covers(kept.place, beginning + "x" * kept.name.endswith("*"))
                          for s in (*GLOBAL_SLOTS, *host.strip))  # fmt: skip
            example = kept.name.replace("*", "user")
            by_words = kept.place is SlotLocation.HEADER and is_claim(example)
            assert emptied or by_words or kept.place is SlotLocation.COOKIE, (place, str(kept))


@each_service
def test_a_client_keeps_its_own_login_only_where_none_is_written(name: str) -> None:
    """I6."""
    for place, host in places(name):
        keeps_login = any(k.covers(SlotLocation.HEADER, "authorization") for k in host.keep)
        assert not (keeps_login and host.inject), place
        assert not any(k.covers(SlotLocation.HEADER, "cookie") for k in host.keep), place


# ── rules ─────────────────────────────────────────────────────────────────────────────────────────


@each_service
def test_a_probe_is_what_the_file_lets_a_sandbox_ask_anyway(name: str) -> None:
    """It mints, lists and moves nothing: an allow covers it, and no guard does."""
    for place, host in places(name):
        if host.probe:
            rules = (*host.allow, *host.api_read)
            assert any(granted(rule).covers(host.probe) for rule in rules), place
            assert not any(rule.covers(host.probe) for rule in host.deny), place


def test_services_that_many_use_can_be_tried() -> None:
    found = {name for name in NAMES if any(host.probe for host in service(name).hosts)}
    assert {"anthropic", "openai", "github", "gitlab", "huggingface", "openrouter"} <= found


@each_service
def test_no_rule_stands_twice(name: str) -> None:
    for place, host in places(name):
        for rules in (host.allow, host.deny, host.api_read, host.api_write):
            assert len({r.text for r in rules}) == len(rules), place


JUDGED = re.compile(
    r"POST (?:/api)?/graphql|GET (?:/api/v3)?/search/(?:issues|code)"
    r"|POST (?:/api/v3)?/repos/\{repo\}/pulls/\*/reviews"
)
"""Guarded, and opened by a level of `api` because each request is judged: see the tests of
`policy/forge_bodies.py` and `policy/forge_search.py`."""


@each_service
def test_what_a_file_allows_is_not_guarded_whole_by_the_same_file(name: str) -> None:
    """But for a forge's endpoints whose requests are judged: no broad `allow` opens those."""
    for place, host in places(name):
        for rule in (*host.allow, *host.api_read, *host.api_write):
            guarded = any(guard.covers(granted(rule)) for guard in host.deny)
            assert not guarded or JUDGED.fullmatch(rule.text), (place, rule.text)


@each_service
def test_a_broad_allow_of_a_policy_opens_no_guard(name: str) -> None:
    """I3: an allow opens a guarded endpoint only by naming it."""
    for place, host in places(name):
        for broad in ("* /**", "GET /**", "GET,POST,PUT,PATCH,DELETE /**"):
            assert not any(g.covers(AccessRule.parse(broad)) for g in host.deny), (place, broad)


@each_service
def test_repositories_are_named_by_forges_and_only_in_their_api_rules(name: str) -> None:
    """`{repo}` is replaced in `api_read` and `api_write` alone; elsewhere it would be a name."""
    template = service(name)
    for place, host in places(name):
        for rule in (*host.allow, *host.deny):
            assert "{" not in rule.text, (place, rule.text)
        for rule in (*host.api_read, *host.api_write):
            braced = [s for s in rule.path.segments if "{" in s or "}" in s]
            assert set(braced) <= {REPOSITORY}, (place, rule.text)
            assert len(braced) <= 1, (place, rule.text)
            assert template.forge, place


@each_service
def test_reading_a_forge_reads_and_writing_names_the_repository(name: str) -> None:
    """I3: `api = "read"` writes nothing, and `pull-requests` writes to granted repositories."""
    for place, host in places(name):
        for rule in host.api_read:
            judged = rule.text.endswith("/graphql")
            assert judged or rule.methods <= {"GET", "HEAD"}, (place, rule.text)
        for rule in host.api_write:
            assert REPOSITORY in rule.path.segments, (place, rule.text)


@each_service
def test_a_forge_has_a_git_host_and_nothing_else_has_one(name: str) -> None:
    template = service(name)
    assert any(host.git for host in template.hosts) is (template.forge is not None)
    assert (template.git_user is not None) is (template.forge is not None)


# ── placeholders ──────────────────────────────────────────────────────────────────────────────────

WITH_PLACEHOLDER = [name for name in NAMES if "\nplaceholder" in text_of(name)]


def noise_of(sandbox: str) -> bytes:
    return hashlib.shake_256(sandbox.encode()).digest(4096)


@pytest.mark.parametrize("name", WITH_PLACEHOLDER)
def test_a_placeholder_has_the_shape_of_the_token_and_carries_the_mark(name: str) -> None:
    """I1: what lies in the sandbox is recognisable, of the right form, and no one's key."""
    usual = service(name).placeholder
    assert usual is not None
    for shape in (usual, *(own for _, own in service(name).placeholders)):
        one, two = shape.placeholder(noise_of("one")), shape.placeholder(noise_of("two"))
        assert one != two
        for made in (one, two):
            assert shape.pattern().fullmatch(made)
            assert carries_mark(made)
        with pytest.raises(ValueError, match="more than 8 bytes"):
            shape.placeholder(bytes(8))


def carries_mark(token: str) -> bool:
    parts = token.split(".")
    if token.startswith("ey") and len(parts) == 3:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=="))
        return str(claims["sub"]).startswith("keyhole-")
    return any(mark in token for mark in MARKS)


def test_a_token_without_the_mark_is_seen() -> None:
    """The control of the test above."""
    assert not carries_mark("ghp_" + "a1B2" * 9)
    assert not carries_mark(
        "eyJhbGciOiJub25lIn0." + base64.b64encode(b'{"sub":"ann"}').decode() + ".x"
    )


@each_service
def test_variables_have_the_form_of_variables_and_stand_once(name: str) -> None:
    env = service(name).env
    assert len(set(env)) == len(env)
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]*", variable) for variable in env)
    # A placeholder in one of these would break the programs that read them.
    assert not {"PATH", "HOME", "SSL_CERT_FILE", "HTTPS_PROXY", "LD_PRELOAD"} & set(env)
