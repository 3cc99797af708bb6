"""Logins of Keyhole's own: renewed for their service, used for its hosts, never shown (I1, I6)."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from keyhole.vault.interface import SecretUnavailable
from keyhole.vault.kept_login import KeptLogin, revocations
from keyhole.vault.login_provider import EndpointAccess
from keyhole.vault.vault import Vault
from tests.rigs.policies import book
from tests.rigs.vault.authserver import HOUR, ISSUER_URL, RESOURCE, SERVICE, AuthServer
from tests.rigs.vault.rig import Programs, World, forms, ref, told
from tests.rigs.vault.tokenserver import posted, unsigned
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import trustme

    from keyhole.vault.interface import FetchedSecret

NAME = ref("login:tracker")
ACCESS, REFRESH = "at-an-old-access-token", "rt-an-old-refresh-token"


@pytest.fixture
def server(authority: trustme.CA) -> Iterator[AuthServer]:
    made = AuthServer(authority)
    made.clients["client"] = {}
    made.refresh[REFRESH] = RESOURCE
    yield made
    made.close()


def document(left: float | None = HOUR, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    expires = None if left is None else int(time.time() + left)
    return {
        "version": 1,
        "service": "tracker",
        "hosts": [SERVICE],
        "resource": RESOURCE,
        "issuer": ISSUER_URL,
        "token_endpoint": f"{ISSUER_URL}/token",
        "client": {"id": "client", "secret": "", "proof": "none"},
        "access_token": ACCESS,
        "refresh_token": REFRESH,
        "expires_at": expires,
        "renewed": int(time.time()),
        "scopes": ["read"],
        "since": 1,
    } | changes


def keep(world: World, login: dict[str, Any]) -> Path:
    path = world.write("home/.local/state/keyhole/logins/tracker.json", json.dumps(login))
    path.parent.chmod(0o700)
    return path


def fetch(world: World, server: AuthServer, *hosts: str) -> FetchedSecret:
    reach = EndpointAccess(lambda: book(server.connect), server.trusting, PATIENCE)
    audience = {NAME: frozenset(hosts or (SERVICE,))}
    ground = replace(world.ground(Programs({})), reach=reach, audiences=audience)
    return Vault(ground).fetch(NAME)


def test_a_login_is_renewed_for_its_service_and_the_new_one_is_kept(
    tmp_path: Path, server: AuthServer
) -> None:
    """`resource` in the renewal (RFC 8707). I7: no refresh token comes back, and neither do the
    tokens that were renewed, which may still be good."""
    world = World(tmp_path)
    path = keep(world, document(left=10))
    before = json.loads(path.read_text())
    given = fetch(world, server)
    assert given.secret.reveal() in server.access
    written = json.loads(path.read_text())
    assert written["access_token"] == given.secret.reveal()
    assert written["refresh_token"] in server.refresh
    assert written["hosts"] == [SERVICE]
    assert posted(server.asked[0])["resource"] == RESOURCE
    old = [before["access_token"], before["refresh_token"]]
    assert [one.reveal() for one in given.hidden] == [written["refresh_token"], *old]
    again = fetch(world, server)
    assert [one.reveal() for one in again.hidden] == [written["refresh_token"]]
    assert again.secret.reveal() == given.secret.reveal()
    assert len(server.asked) == 1


def test_a_login_is_used_only_for_hosts_that_it_was_made_for(
    tmp_path: Path, server: AuthServer
) -> None:
    """I1: another policy names the same login and a host of its own. Control: the right host."""
    world = World(tmp_path)
    keep(world, document())
    assert fetch(world, server).secret.reveal() == ACCESS
    for hosts in (("evil.example",), (SERVICE, "evil.example"), ("*.tracker.example",)):
        with pytest.raises(SecretUnavailable, match="this policy would send the token to") as error:
            fetch(world, server, *hosts)
        assert not any(form in told(error.value) for form in forms(ACCESS))
    assert not server.asked


def test_a_refresh_token_that_is_spent_says_how_to_log_in_again(
    tmp_path: Path, server: AuthServer
) -> None:
    world = World(tmp_path)
    server.refresh.clear()
    keep(world, document(left=-5))
    with pytest.raises(SecretUnavailable, match="`keyhole login tracker`") as error:
        fetch(world, server)
    said = told(error.value)
    assert "\x1b" not in str(error.value)
    assert not any(form in said for text in (ACCESS, REFRESH) for form in forms(text))


def test_a_token_without_a_known_end_is_renewed_after_an_hour(
    tmp_path: Path, server: AuthServer
) -> None:
    world = World(tmp_path)
    keep(world, document(left=None))
    assert fetch(world, server).secret.reveal() == ACCESS
    keep(world, document(left=None, renewed=int(time.time()) - 2 * HOUR))
    assert fetch(world, server).secret.reveal() in server.access


def test_a_missing_login_says_what_to_type(tmp_path: Path, server: AuthServer) -> None:
    with pytest.raises(SecretUnavailable, match="`keyhole login tracker`"):
        fetch(World(tmp_path), server)


def test_a_file_that_others_could_change_is_not_used(tmp_path: Path, server: AuthServer) -> None:
    """I11."""
    world = World(tmp_path)
    path = keep(world, document())
    path.chmod(0o666)
    with pytest.raises(SecretUnavailable):
        fetch(world, server)
    path.chmod(0o600)
    path.write_text(json.dumps({"version": 2, "access_token": ACCESS}))
    with pytest.raises(SecretUnavailable, match="no login in it"):
        fetch(world, server)


def test_a_clients_secret_is_hidden_too_and_proves_the_client(
    tmp_path: Path, server: AuthServer
) -> None:
    """I7."""
    world = World(tmp_path)
    secret = "a-client-secret-of-some-length"
    proof = {"id": "client", "secret": secret, "proof": "client_secret_basic"}
    keep(world, document(left=10, client=proof))
    given = fetch(world, server)
    assert secret in [one.reveal() for one in given.hidden]
    assert server.asked[0].headers["authorization"].startswith("Basic ")
    assert "client_id" not in posted(server.asked[0])


def test_the_end_of_a_token_is_read_from_its_claims_where_nothing_else_says_it() -> None:
    tokens = KeptLogin("x").tokens(document(None, access_token=unsigned(exp=1234)))
    assert not isinstance(tokens, str)
    assert tokens.expires == 1234.0


def test_a_damaged_file_sends_its_token_nowhere() -> None:
    login = document(token_endpoint="http://evil.example/", client=7)
    tokens = KeptLogin("x").tokens(login)
    assert not isinstance(tokens, str)
    assert KeptLogin("x").request(login, tokens).url.host.name == "endpoint.invalid"
    assert revocations(login) == ()
    assert KeptLogin("x").renewed(login, {"access_token": "a b"}, 0.0) is None
