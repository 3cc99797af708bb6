"""A session's standing when its policy or a secret changes."""

from __future__ import annotations

from keyhole.app.provision import Provision
from keyhole.app.roots import Roots
from keyhole.app.tenant import make_tenant
from keyhole.certs.roots import system_bundle
from keyhole.model.secret import Secret, SecretRef
from keyhole.model.value import replace
from tests.worlds import loaded

TEXT = "[services.model]\nsecret = 'store:m'\n[services.forge]\nsecret = 'store:f'\n"
REF = SecretRef.parse("store:m")


def test_another_policys_roots_hold_and_the_authority_stays() -> None:
    """I4: an origin is verified by what is accepted now; the sandbox knows one CA alone."""
    policy = loaded(TEXT).policy
    before = Roots(system_bundle(), None)
    secrets = {"model": Secret("m" * 20), "forge": Secret("f" * 20)}
    tenant = make_tenant("0123456789ab", Provision("sha256:1", policy, before, secrets), {})
    assert tenant.trust is not None
    after = replace(tenant.provision, roots=Roots(system_bundle(), tenant.trust.authority.pem))
    changed = tenant.with_provision(after)
    assert changed.trust is not None
    assert changed.trust.roots == after.roots
    assert changed.trust.authority is tenant.trust.authority


def test_a_new_secret_is_that_of_the_services_which_name_it() -> None:
    policy = loaded(TEXT).policy
    old, other, new, hidden = (Secret(each * 20) for each in "ofnh")
    provision = Provision("sha256:1", policy, None, {"model": old, "forge": other})
    changed = make_tenant("0123456789ab", provision, {}).with_secret(REF, new, (hidden,))
    assert changed.provision.secrets["model"] is new
    assert changed.provision.hidden["model"] == (hidden,)
    assert changed.provision.secrets["forge"] is other
