"""What is placed in a sandbox so that clients work with credentials they never hold (I1)."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.client_setup import (
    BUNDLE,
    BUNDLE_VARIABLES,
    CA,
    CA_VARIABLES,
    POLICY,
    UNSHAPED,
    ClientSetup,
    SandboxCertificates,
    SessionPlaceholders,
    build_client_setup,
    inspects_tls,
)
from keyhole.inject.placeholder import TokenShape
from keyhole.inject.preset import Preset, PresetHost
from keyhole.model.host import HostPattern
from keyhole.model.secret import Secret
from keyhole.policy.presets import join_presets
from keyhole.sandbox.files.mount_plan import (
    BinaryFile,
    Bind,
    Entry,
    Mask,
    MountKind,
    SeedFile,
    TextFile,
    Tmpfs,
)
from keyhole.sandbox.files.system_trees import system_files
from tests.rigs.policies import loaded

if TYPE_CHECKING:
    from keyhole.policy.policy import Policy

CERTIFICATES = SandboxCertificates(b"the CA\n", b"roots\nthe CA\n", lambda: b"\x30\x82store")
HOME = Path("/home/me")
IN_MEMORY = Tmpfs(str(HOME), 1 << 20, 0o700)
MODEL = '[services.model]\nsecret = "store:model"\n'


def noise(seed: int = 1) -> random.Random:
    return random.Random(seed)  # noqa: S311 - the same each time, for tests


class Made:
    """A kit, and what stands for secrets in it."""

    def __init__(self, found: ClientSetup, made: SessionPlaceholders) -> None:
        self.entries, self.environment, self.notices = (
            found.entries,
            found.environment,
            found.notices,
        )
        self.placeholders, self.stand_ins = made.by_service, made.by_variable


def kit(
    policy: Policy | str,
    shown: tuple[Entry, ...] = (IN_MEMORY,),
    root: Path = Path("/nowhere"),
    seed: int = 1,
    certificates: SandboxCertificates | None = CERTIFICATES,
) -> Made:
    policy = loaded(policy).policy if isinstance(policy, str) else policy
    stand_ins = SessionPlaceholders(policy, noise(seed).randbytes)
    found = build_client_setup(policy, certificates, shown, HOME, stand_ins, "2026-07-01", root)
    return Made(found, stand_ins)


def using(policy: str, template: str) -> Policy:
    """A policy whose first service is of this catalogue entry."""
    found = loaded(policy).policy
    first, *others = found.services
    return replace(found, services=(replace(first, template=template), *others))


def content(found: Made, target: str) -> str:
    (entry,) = [
        e for e in found.entries if isinstance(e, TextFile | SeedFile) and e.target == target
    ]
    return entry.content


# ── placeholders ──────────────────────────────────────────────────────────────────────────────────


def test_each_session_has_placeholders_of_its_own_in_the_shape_of_the_token() -> None:
    one, same, other = kit(MODEL), kit(MODEL), kit(MODEL, seed=2)
    shape = TokenShape.parse("mk-{alnum:40}")
    assert shape.pattern().fullmatch(one.placeholders["model"])
    assert one.environment["MODEL_KEY"] == one.placeholders["model"]
    assert one.placeholders == same.placeholders
    assert one.placeholders != other.placeholders


def test_a_variable_that_the_sandbox_has_already_keeps_its_value() -> None:
    """A pod's environment is older than the policy that it is claimed under."""
    policy = loaded(MODEL).policy
    given = {"MODEL_KEY": "mk-of-the-template", "OTHER": "x"}
    made = SessionPlaceholders(policy, noise().randbytes, given)
    assert made.environment == {"MODEL_KEY": "mk-of-the-template"}
    assert made.texts()["model"] == ("mk-of-the-template",)
    assert SessionPlaceholders(policy, noise().randbytes).environment != made.environment


def test_a_service_without_a_secret_has_no_placeholder() -> None:
    """I3. Control: with one it has."""
    without = kit("[services.model]\n")
    assert not without.placeholders
    assert "MODEL_KEY" not in without.environment
    assert "MODEL_KEY" in kit(MODEL).environment


def test_a_presets_credential_has_no_placeholder() -> None:
    """I1: nothing inside asks for it, and the value itself is nowhere in the kit."""
    host = PresetHost(HostPattern.parse("mirror.example"), credential=Secret("hunter2hunter2hu"))
    policy, _ = join_presets(
        loaded('[egress]\npresets = ["python"]\n').policy, [Preset("python", (host,))]
    )
    found = kit(policy)
    assert not found.placeholders
    assert "hunter2" not in repr(found)
    assert "SSL_CERT_FILE" in found.environment  # but the host is inspected


def test_a_service_without_a_shape_has_a_stand_in_and_no_variable() -> None:
    own = """
[services.own]
hosts = ["own.example"]
allow = ["GET /**"]
inject = { query = "key" }
secret = "store:own"
"""
    found = kit(own)
    assert UNSHAPED.pattern().fullmatch(found.placeholders["own"])
    assert found.placeholders["own"] not in found.environment.values()


def test_two_services_that_read_one_variable_share_what_it_holds() -> None:
    """A client that signs with it is right for both; the host decides whose secret is written."""
    second = """
[services.other]
use = "model"
hosts = ["other.example"]
secret = "store:other"
"""
    found = kit(MODEL + second)
    assert found.environment["MODEL_KEY"] == found.placeholders["model"]
    assert found.stand_ins["other"] == found.stand_ins["model"]
    assert found.notices == ()


def test_of_two_shapes_in_one_variable_the_first_is_there_and_the_person_is_told() -> None:
    second = """
[services.other]
use = "model"
hosts = ["other.example"]
secret = "store:other"
placeholder = "other-{alnum:32}"
"""
    found = kit(MODEL + second)
    assert found.environment["MODEL_KEY"] == found.placeholders["model"]
    assert found.stand_ins["other"] == {"MODEL_KEY": found.placeholders["other"]}
    (notice,) = found.notices
    assert notice.startswith("MODEL_KEY holds the placeholder of services.model; services.other")


def test_a_variable_may_have_a_shape_of_its_own() -> None:
    """The gateway checks what a client signed with such a pair."""
    policy = loaded(MODEL).policy
    several = replace(
        policy.services[0],
        env=("KEY_ID", "SECRET_KEY"),
        placeholder=TokenShape.parse("AKIA{base32:16}"),
        placeholders=(
            ("SECRET_KEY", TokenShape.parse("{b64:40}")),
            ("NOT_NAMED", TokenShape.parse("{b64:40}")),
        ),
    )
    found = kit(replace(policy, services=(several,)))
    assert found.environment["KEY_ID"] == found.placeholders["model"]
    assert len(found.environment["SECRET_KEY"]) == 40
    assert found.stand_ins["model"] == {n: found.environment[n] for n in ("KEY_ID", "SECRET_KEY")}


@pytest.mark.parametrize("name", sorted(FileCatalogue()))
def test_enough_noise_is_asked_for_every_shape_of_the_catalogue(name: str) -> None:
    shape = FileCatalogue()[name].placeholder
    policy = loaded(MODEL).policy
    service = replace(policy.services[0], placeholder=shape)
    placeholder = kit(replace(policy, services=(service,))).placeholders["model"]
    assert (shape or UNSHAPED).pattern().fullmatch(placeholder)


def test_enough_noise_is_asked_for_a_shape_of_many_tokens() -> None:
    """A policy's shape is its author's: it must not end the run with a surprise (I9)."""
    policy = loaded(MODEL).policy
    service = replace(policy.services[0], placeholder=TokenShape.parse("{jwt}" * 100))
    assert kit(replace(policy, services=(service,))).placeholders["model"].count(".") == 200


# ── certificates ──────────────────────────────────────────────────────────────────────────────────


def test_the_fixed_places_are_there_under_any_policy() -> None:
    found = kit("")
    assert content(found, CA) == "the CA\n"
    assert content(found, BUNDLE) == "roots\nthe CA\n"
    assert json.loads(content(found, POLICY))["version"] == 1
    assert len(found.entries) == 3


def test_variables_are_set_where_something_is_inspected_and_not_otherwise() -> None:
    """The kind that replaces a client's roots gets them all; the kind that adds gets one."""
    found = kit(MODEL).environment
    assert {found[name] for name in BUNDLE_VARIABLES} == {BUNDLE}
    assert {found[name] for name in CA_VARIABLES} == {CA}
    assert not {"NODE_OPTIONS", "JAVA_TOOL_OPTIONS", "YARN_HTTPS_CA_FILE_PATH"} & set(found)
    assert not kit('[egress]\nallow = ["example.org"]\n', certificates=None).environment


def test_a_service_whose_every_host_is_tunnelled_inspects_nothing() -> None:
    own = """
[services.own]
hosts = ["own.example", "two.example"]
allow = ["GET /**"]
unsafe_passthrough = ["own.example"%s]
"""
    assert inspects_tls(loaded(own % "").policy)
    assert not inspects_tls(loaded(own % ', "two.example"').policy)


def a_system(root: Path) -> tuple[Entry, ...]:
    for name in ("etc/ssl/certs/ca-certificates.crt", "usr/lib/jvm/a/lib/security/cacerts"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("of the host")
    return (*system_files(root, frozenset()).entries, IN_MEMORY)


def test_the_systems_own_places_are_covered_where_something_is_inspected(tmp_path: Path) -> None:
    shown = a_system(tmp_path)
    found = kit(MODEL, shown, tmp_path).entries
    # They hide nothing, so an update of the host's roots is no reason to end the run.
    assert TextFile("/etc/ssl/certs/ca-certificates.crt", "roots\nthe CA\n", guards=False) in found
    assert BinaryFile("/usr/lib/jvm/a/lib/security/cacerts", b"\x30\x82store") in found
    assert [e.target for e in kit("", shown, tmp_path, certificates=None).entries] == [POLICY]


def test_a_trust_store_is_made_only_where_a_jvm_is(tmp_path: Path) -> None:
    made: list[int] = []

    def truststore() -> bytes:
        made.append(1)
        return b"store"

    certificates = replace(CERTIFICATES, truststore=truststore)
    kit(MODEL, certificates=certificates)
    assert not made
    kit(MODEL, a_system(tmp_path), tmp_path, certificates=certificates)
    assert made == [1]


# ── logins ────────────────────────────────────────────────────────────────────────────────────────


def test_a_login_is_put_into_the_empty_home() -> None:
    found = kit(using(MODEL, "codex"))
    login = json.loads(content(found, "/home/me/.codex/auth.json"))
    assert login["tokens"]["refresh_token"] == found.placeholders["model"]
    assert isinstance(found.entries[-1], SeedFile)


def test_a_service_without_a_secret_has_no_login() -> None:
    assert len(kit(using("[services.model]\n", "codex")).entries) == 3


def test_a_login_is_never_put_into_a_tree_of_the_host() -> None:
    """I11: it would be written to the person's own file. Control: the empty home, above."""
    codex = Bind("/home/me/.codex", "/home/me/.codex", MountKind.DIR, writable=True)
    found = kit(using(MODEL, "codex"), (IN_MEMORY, codex))
    assert not [e for e in found.entries if "auth.json" in e.target]
    assert "~/.codex/auth.json" in found.notices[0]


def test_a_login_covers_the_mask_over_the_hosts_own() -> None:
    codex = Bind("/home/me/.codex", "/home/me/.codex", MountKind.DIR, writable=True)
    mask = Mask("/home/me/.codex/auth.json", MountKind.FILE)
    found = kit(using(MODEL, "codex"), (IN_MEMORY, codex, mask))
    assert isinstance(found.entries[-1], TextFile)
    assert found.entries[-1].target == mask.target
    assert not found.notices
