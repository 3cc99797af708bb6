"""A session's standing when its policy or a secret changes."""

from __future__ import annotations

from msgspec.structs import replace

from keyhole.app.session.prepared_session import prepare_session
from keyhole.app.setup.provision import Provision
from keyhole.app.setup.trusted_roots import TrustedRoots
from keyhole.certs.roots import system_bundle
from keyhole.model.secret import Secret, SecretRef
from tests.rigs.policies import loaded

TEXT = "[services.model]\nsecret = 'store:m'\n[services.forge]\nsecret = 'store:f'\n"
REF = SecretRef.parse("store:m")


def test_another_policys_roots_hold_and_the_authority_stays() -> None:
    """I4: an origin is verified by what is accepted now; the sandbox knows one CA alone."""
    policy = loaded(TEXT).policy
    before = TrustedRoots(system_bundle(), None)
    secrets = {"model": Secret("m" * 20), "forge": Secret("f" * 20)}
    prepared = prepare_session("0123456789ab", Provision("sha256:1", policy, before, secrets), {})
    assert prepared.trust is not None
    after = replace(
        prepared.provision, roots=TrustedRoots(system_bundle(), prepared.trust.authority.pem)
    )
    changed = prepared.with_provision(after)
    assert changed.trust is not None
    assert changed.trust.roots == after.roots
    assert changed.trust.authority is prepared.trust.authority


def test_a_new_secret_is_that_of_the_services_which_name_it() -> None:
    policy = loaded(TEXT).policy
    old, other, new, hidden = (Secret(each * 20) for each in "ofnh")
    provision = Provision("sha256:1", policy, None, {"model": old, "forge": other})
    changed = prepare_session("0123456789ab", provision, {}).with_secret(REF, new, (hidden,))
    assert changed.provision.secrets["model"] is new
    assert changed.provision.hidden["model"] == (hidden,)
    assert changed.provision.secrets["forge"] is other
