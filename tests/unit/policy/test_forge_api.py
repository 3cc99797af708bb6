"""Forges' REST by the catalogue's own files: what each level of `api` opens, and what none does.

Every endpoint that is allowed and every one that would pass around the push policy, mint a
credential or leave the granted repositories is a row (I3, I4, I6).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.host import presets
from keyhole.host.suffixes import covered_suffix
from keyhole.http.request import Treatment
from keyhole.inject.credential_stripper import CredentialStripper, written_slots
from keyhole.model.decision import Reason, RequestDecision
from keyhole.model.host import Host
from keyhole.model.path import RequestPath
from keyhole.model.reasons import REASONS
from keyhole.policy.build import PolicyContext
from keyhole.policy.judges import make_judge
from keyhole.policy.load import PolicyText, load
from keyhole.policy.request import RequestFacts, decide_request
from keyhole.policy.rulebook import Rulebook
from tests.rigs.git.endpoints import DANGEROUS, KINDS, MALFORMED, READ, UNLISTED, WRITE, Row, rows

if TYPE_CHECKING:
    from keyhole.model.rule import AccessRule

WORLD = PolicyContext(FileCatalogue(), covered_suffix, presets.NAMES)
LEVELS = ("off", "read", "pull-requests", "merge")
BROAD = 'allow = ["* /**"]'
GUARDED = (Reason.GUARDED_ENDPOINT, Reason.MERGE_BY_REST, Reason.REPOSITORY_NOT_GRANTED)


@functools.cache
def book(name: str, *more: str) -> Rulebook:
    """A policy that grants acme/widgets at one entry."""
    lines = (f"[services.{name}]", 'repos = ["acme/widgets"]', KINDS[name].more, *more)
    return book_of("\n".join(lines))


def book_of(text: str) -> Rulebook:
    policy = load(PolicyText("keyhole.toml", f"version = 1\n{text}\n".encode()), None, WORLD).policy
    return Rulebook(policy)


def decide(rules: Rulebook, host: str, method: str, path: str, query: str = "") -> RequestDecision:
    return decide_request(rules, Host.parse(host), 443, RequestFacts(method, path, query))


def at_level(name: str, level: str, method: str, path: str) -> RequestDecision:
    return decide(book(name, f'api = "{level}"'), KINDS[name].host, method, path)


def ask_all(table: dict[str, str], level: str) -> dict[Row, RequestDecision]:
    return {row: at_level(row[0], level, *row[1:]) for row in rows(table)}


# ── levels ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("level", ["read", "pull-requests", "merge"])
def test_reading_is_open_at_each_level(level: str) -> None:
    refused = [row for row, said in ask_all(READ, level).items() if not said.allowed]
    assert refused == []


def test_writing_is_open_from_the_level_of_pull_requests_on() -> None:
    for level in ("pull-requests", "merge"):
        assert [r for r, said in ask_all(WRITE, level).items() if not said.allowed] == []
    for level in ("off", "read"):
        assert [r for r, said in ask_all(WRITE, level).items() if said.allowed] == []


def test_off_is_off() -> None:
    """I3. The control is the first test: the same rows at another level."""
    for said in ask_all(READ, "off").values():
        assert not said.allowed
        assert said.reason in (Reason.NO_RULE, *GUARDED)


@pytest.mark.parametrize("level", LEVELS)
def test_no_level_opens_what_writes_refs_mints_credentials_or_approves(level: str) -> None:
    """I3: the push policy, the secrets and the reviewers are not walked around by REST."""
    for row, said in ask_all(DANGEROUS, level).items():
        assert not said.allowed, row
        assert said.reason in GUARDED, row


@pytest.mark.parametrize("level", LEVELS)
def test_what_no_rule_names_is_refused(level: str) -> None:
    """I3."""
    for row, said in ask_all(UNLISTED, level).items():
        assert not said.allowed, row
        assert said.reason in (Reason.NO_RULE, Reason.REPOSITORY_NOT_GRANTED), row


def test_a_path_that_two_servers_could_read_differently_is_refused() -> None:
    """I4: at the levels, and under a broad `allow`, which would let through what is merely odd."""
    for name, method, path in rows(MALFORMED):
        for level in LEVELS:
            said = at_level(name, level, method, path)
            assert not said.allowed, (name, path)
        said = decide(book(name, BROAD), KINDS[name].host, method, path)
        assert (name, path, said.reason) == (name, path, Reason.PATH_MALFORMED)


@pytest.mark.parametrize("level", LEVELS)
def test_a_broad_allow_of_the_policy_does_not_open_what_is_dangerous(level: str) -> None:
    """I3: each row is guarded by name. The control: rows without a guard are opened by it."""
    for name, method, path in rows(DANGEROUS):
        rules = book(name, f'api = "{level}"', BROAD)
        said = decide(rules, KINDS[name].host, method, path)
        row = (name, method, path)
        assert not said.allowed, row
        assert said.reason in GUARDED, row
    for name, method, path in rows(READ):
        assert decide(book(name, BROAD), KINDS[name].host, method, path).allowed


def test_every_rule_of_a_forges_rest_has_a_row() -> None:
    """A rule that is added is looked at here, too."""
    for name in KINDS:
        template = WORLD.catalogue[name]
        host = template.hosts[0]
        for table, rules in ((READ, host.api_read), (WRITE, host.api_write)):
            asked = [row for row in rows(table) if row[0] == name]
            if KINDS[name].table == "github":
                asked.append((name, "POST", graphql_path(name, "graphql")))
            unasked = [r.text for r in rules if not any(_speaks(r, *row[1:]) for row in asked)]
            assert (name, unasked) == (name, [])


def _speaks(rule: AccessRule, method: str, path: str) -> bool:
    segments = RequestPath.parse(path, opaque_slash=True).segments
    text = "/".join(segments).replace("acme/widgets", "{repo}")
    return rule.speaks_of(method) and rule.path.matches(tuple(text.split("/")) if text else ())


SPELLINGS = ("graphql", "graphql/", "GraphQL", "%67raphql")


def graphql_path(name: str, spelling: str) -> str:
    return f"/api/{spelling}" if KINDS[name].root else f"/{spelling}"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", [n for n in KINDS if KINDS[n].table == "github"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_github_s_graphql_is_open_with_its_api_and_is_always_judged(
    name: str, level: str, spelling: str
) -> None:
    """I3: also under a broad `allow`. A rule of the policy that names it opens it whole."""
    kind = KINDS[name]
    path = graphql_path(name, spelling)
    for more in ((), (BROAD,)):
        rules = book(name, f'api = "{level}"', *more)
        said = decide(rules, kind.host, "POST", path)
        assert said.allowed is (level != "off")
        assert not decide(rules, kind.host, "GET", path).allowed
        (service,) = rules.policy.services
        judge = make_judge(service)
        assert judge is not None
        if said.allowed:
            assert judge.wants(service.hosts[0], "POST", RequestPath.parse(path), said)
    named = book(name, f'api = "{level}"', f'allow = ["POST {graphql_path(name, "graphql")}"]')
    opened = decide(named, kind.host, "POST", graphql_path(name, "graphql"))
    assert opened.rule == f"services.{name}.allow[0]"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_gitlab_s_graphql_is_closed_at_every_level(level: str, spelling: str) -> None:
    """I3: no table says what is open there. Control: REST beside it."""
    for method in ("POST", "GET"):
        for more in ((), (BROAD,)):
            rules = book("gitlab", f'api = "{level}"', *more)
            said = decide(rules, KINDS["gitlab"].host, method, f"/api/{spelling}")
            assert said.reason is Reason.GRAPHQL_CLOSED
    assert at_level("gitlab", "read", "GET", "/api/v4/user").allowed


# ── what is taken out on the way ────────────────────────────────────────────────────────────────


def surgery(name: str) -> CredentialStripper:
    """What the gateway takes out of requests to the REST of an entry."""
    host = book(name).services(Host.parse(KINDS[name].host), 443)[0].host
    return CredentialStripper((*host.strip, *written_slots(host.inject)), host.keep)


STRANGERS = [
    "private_token=x", "access_token=x", "job_token=x", "token=x", "oauth_token=x",
    "PRIVATE_TOKEN=x", "private%5Ftoken=x", "private_token[]=x", "access_token%00=x",
    "client_secret=x",
]  # fmt: skip
ACTING_AS = ["sudo=root", "SUDO=root", "%73udo=root", "sudo[]=root", "sudo", "sudo%00x=root"]
ELSEWHERE = ["from_project_id=42", "target_project_id=42", "from.project.id=42"]


@pytest.mark.parametrize("name", KINDS)
def test_a_query_that_names_another_method_is_refused(name: str) -> None:
    """I3: Rack reads `_method`. The control: the same request without."""
    host, path = Host.parse(KINDS[name].host), f"{KINDS[name].root}/user"
    rules = book(name, 'api = "read"')
    plain = decide_request(rules, host, 443, RequestFacts("GET", path, "page=2"))
    assert plain.allowed
    refused = decide_request(rules, host, 443, RequestFacts("GET", path, "page=2&_method=PUT"))
    assert refused.reason is Reason.METHOD_OVERRIDE


@pytest.mark.parametrize("name", KINDS)
def test_fields_that_are_credentials_do_not_travel_in_a_query(name: str) -> None:
    """I6. The control: other fields do."""
    cut = surgery(name)
    asked = [*STRANGERS]
    if KINDS[name].table != "github":
        asked += ACTING_AS
    if name == "gitlab":
        asked += ELSEWHERE
    for field in asked:
        assert cut.query(f"page=2&{field}&per_page=5") == "page=2&per_page=5", field
        assert cut.query(f"page=2;{field}") == "page=2", field


@pytest.mark.parametrize("name", KINDS)
def test_fields_that_name_another_identity_do_not_travel_in_a_head(name: str) -> None:
    """I6. The control: other fields do."""
    cut = surgery(name)
    names = [b"authorization", b"private-token", b"job-token", b"deploy-token", b"sudo", b"cookie"]
    names += [b"x-gitea-otp", b"x-github-otp", b"x-forwarded-user"]
    if KINDS[name].table == "gitea":
        names += [b"x-webauth-user", b"x-webauth-email"]
    assert [n for n in names if cut.treat(n) is not Treatment.DROP] == []
    for kept in (b"accept", b"x-github-api-version", b"if-none-match"):
        assert cut.treat(kept) is Treatment.KEEP


# ── files and archives beside git ───────────────────────────────────────────────────────────────


GITHUB = """
[services.github]
secret = "store:work"
repos = ["acme/widgets"]
push = ["agent/*"]
[services.personal]
use = "github"
secret = "store:personal"
repos = ["ann/notes"]
api = "pull-requests"
[services.quiet]
use = "github"
repos = ["quiet/code"]
api = "off"
"""


@pytest.mark.parametrize(
    ("host", "granted", "refused"),
    [
        ("github.com", "/acme/widgets/archive/main.zip", "/acme/vault/archive/main.zip"),
        ("github.com", "/acme/widgets/releases/download/v1/x", "/acme/x/releases/download/v1/x"),
        ("github.com", "/acme/widgets/archive/main.zip", "/acme/widgets/raw/main/x"),
        ("github.com", "/acme/widgets/archive/main.zip", "/acme/widgets/blob/main/x"),
        ("github.com", "/acme/widgets/archive/main.zip", "/quiet/code/archive/main.zip"),
        ("raw.githubusercontent.com", "/acme/widgets/main/x", "/acme/vault/main/x"),
        ("raw.githubusercontent.com", "/acme/widgets/main/x", "/quiet/code/main/x"),
        ("codeload.github.com", "/acme/widgets/zip/main", "/acme/vault/zip/main"),
        ("media.githubusercontent.com", "/media/acme/widgets/main/x", "/media/acme/vault/main/x"),
    ],
)  # fmt: skip
def test_archives_and_raw_files_are_of_granted_repositories(
    host: str, granted: str, refused: str
) -> None:
    """I3, with its control in each row."""
    rules = book_of(GITHUB)
    assert decide(rules, host, "GET", granted).allowed
    assert not decide(rules, host, "GET", refused).allowed
    assert not decide(rules, host, "PUT", granted).allowed


@pytest.mark.parametrize(
    "host",
    ["gist.github.com", "uploads.github.com", "lfs.github.com", "gist.githubusercontent.com"],
)
def test_other_hosts_of_a_forge_do_not_exist(host: str) -> None:
    """I3. The control: its own."""
    rules = book_of(GITHUB)
    assert rules.grant(Host.parse(host), 443) is None
    assert rules.grant(Host.parse("api.github.com"), 443) is not None


# ── several accounts ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("host", "method", "path", "query", "account"),
    [
        ("github.com", "GET", "/acme/widgets/info/refs", "service=git-upload-pack", "github"),
        ("github.com", "GET", "/Ann/Notes.git/info/refs", "service=git-upload-pack", "personal"),
        ("github.com", "POST", "/ann/notes/git-upload-pack", "", "personal"),
        ("github.com", "POST", "/acme/widgets.git/git-receive-pack", "", "github"),
        ("api.github.com", "GET", "/repos/acme/widgets/pulls", "", "github"),
        ("api.github.com", "GET", "/repos/ann/notes/pulls", "", "personal"),
        ("api.github.com", "POST", "/repos/Ann/notes/pulls", "", "personal"),
        ("raw.githubusercontent.com", "GET", "/ann/notes/main/x", "", "personal"),
        ("github.com", "GET", "/quiet/code/info/refs", "service=git-upload-pack", "quiet"),
    ],
)  # fmt: skip
def test_the_repositorys_owner_chooses_the_account(
    host: str, method: str, path: str, query: str, account: str
) -> None:
    """I4: one host, and each request gets the credential of the account that grants it."""
    decision = decide(book_of(GITHUB), host, method, path, query)
    assert (decision.allowed, decision.service) == (True, account)


@pytest.mark.parametrize(
    ("host", "method", "path", "reason"),
    [
        # What one account may, the other's repositories may not.
        ("api.github.com", "POST", "/repos/acme/widgets/pulls", Reason.NO_RULE),
        ("api.github.com", "GET", "/repos/quiet/code/pulls", Reason.NO_RULE),
        ("github.com", "POST", "/ann/notes/git-receive-pack", Reason.READ_ONLY),
        ("github.com", "POST", "/acme/notes/git-upload-pack", Reason.REPOSITORY_NOT_GRANTED),
        ("github.com", "POST", "/ann/widgets/git-upload-pack", Reason.REPOSITORY_NOT_GRANTED),
    ],
)
def test_one_accounts_grants_are_not_the_others(
    host: str, method: str, path: str, reason: Reason
) -> None:
    """I3. The controls are above."""
    decision = decide(book_of(GITHUB), host, method, path)
    assert (decision.allowed, decision.reason) == (False, reason)


# ── opening by name ─────────────────────────────────────────────────────────────────────────────


# The second is guarded, the first is merely not listed.
@pytest.mark.parametrize("endpoint", ["issues/*/labels", "pulls/*/reviews"])
def test_what_is_left_out_is_opened_by_its_name_and_for_that_repository(endpoint: str) -> None:
    """I3. The control: without the `allow` it is refused, and with it elsewhere."""
    path = f"/repos/acme/widgets/{endpoint.replace('*', '1')}"
    opened = book("github", f'allow = ["POST /repos/acme/widgets/{endpoint}"]')
    assert decide(opened, "api.github.com", "POST", path).allowed
    assert not decide(book("github"), "api.github.com", "POST", path).allowed
    assert not decide(opened, "api.github.com", "POST", path.replace("widgets", "vault")).allowed
    assert not decide(opened, "api.github.com", "PUT", "/repos/acme/widgets/pulls/1/merge").allowed


def test_a_merge_by_rest_says_which_way_is_open() -> None:
    """I3: the request names no branch, so `push` and `protect` cannot hold it, at any level. The
    control is a rule that names it, which opens every merge."""
    path = "/repos/acme/widgets/pulls/1/merge"
    for more in ("", 'api = "merge"'):
        refused = decide(book("github", more), "api.github.com", "PUT", path)
        assert (refused.allowed, refused.reason) == (False, Reason.MERGE_BY_REST)
        assert "gh pr merge" in REASONS[refused.reason].sentence
    elsewhere = decide(book("github"), "api.github.com", "PUT", path.replace("widgets", "vault"))
    assert elsewhere.reason is Reason.REPOSITORY_NOT_GRANTED
    branch = decide(book("github"), "api.github.com", "PUT", path.replace("merge", "update-branch"))
    assert branch.reason is Reason.GUARDED_ENDPOINT
    opened = book("github", 'allow_also = ["PUT /repos/acme/widgets/pulls/*/merge"]')
    assert decide(opened, "api.github.com", "PUT", path).allowed
    lab = "/api/v4/projects/acme%2Fwidgets/merge_requests/1/merge"
    assert decide(book("gitlab"), "gitlab.com", "PUT", lab).reason is Reason.GUARDED_ENDPOINT
