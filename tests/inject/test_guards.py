"""Endpoints that mint, list or move credentials stay closed under a broad allow (I3, facts §0.6).

Each row is an endpoint that the facts name as dangerous; a policy that says `allow = ["* /**"]`
must still meet a deny of the catalogue there. Beside them stands what each service is for: open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyhole.model.host import Host
from keyhole.model.path import RequestPath
from keyhole.model.rule import AccessRule
from tests.inject.shelf import granted, service

if TYPE_CHECKING:
    from keyhole.inject.catalogue import HostTemplate

# service: [(method, path), …]; a path that begins with a host is of that host.
GUARDED = {
    "anthropic": [
        ("POST", "/v1/organizations/api_keys"),
        ("GET", "/v1/organizations/api_keys"),
        ("POST", "/v1/organizations/api_keys/"),
        ("GET", "/v1/organizations/users"),
        ("POST", "/v1/files"),
        ("GET", "/v1/files/f/content"),
        ("POST", "/v1/skills"),
        ("POST", "/v1/messages/batches"),
        ("POST", "/v1/oauth/token"),
        ("POST", "/api/oauth/claude_cli/create_api_key"),
    ],
    "claude": [
        ("POST", "/api/oauth/claude_cli/create_api_key"),
        ("POST", "/v1/oauth/token"),
        ("POST", "/v1/organizations/api_keys"),
        ("POST", "/v1/files"),
    ],
    "openai": [
        ("POST", "/v1/realtime/client_secrets"),
        ("POST", "/v1/realtime/sessions"),
        ("POST", "/v1/realtime/transcription_sessions"),
        ("POST", "/v1/organization/admin_api_keys"),
        ("GET", "/v1/organization/projects/p/api_keys"),
        ("POST", "/v1/files"),
        ("POST", "/v1/uploads"),
        ("POST", "/v1/vector_stores"),
        ("POST", "/v1/containers"),
        ("POST", "/v1/batches"),
        ("POST", "/v1/fine_tuning/jobs"),
        ("POST", "/v1/skills"),
        ("POST", "/v1/conversations"),
    ],
    "codex": [
        ("GET", "/api/auth/session"),
        ("POST", "/oauth/token"),
        ("POST", "/backend-api/share/create"),
        ("GET", "/backend-api/connectors/list"),
        ("GET", "/backend-api/accounts/check"),
    ],
    "codex-pat": [
        ("POST", "auth.openai.com/oauth/token"),
        ("POST", "auth.openai.com/oauth/revoke"),
        ("POST", "auth.openai.com/api/accounts/deviceauth/token"),
        ("GET", "chatgpt.com/api/auth/session"),
    ],
    "azure-openai": [
        ("POST", "/openai/files"),
        ("POST", "/openai/v1/files"),
        ("POST", "/openai/v1/realtime/client_secrets"),
        ("POST", "/openai/realtimeapi/sessions"),
        ("POST", "/openai/fine_tuning/jobs"),
        ("POST", "/openai/deployments/d/extensions/chat/completions"),
        ("POST", "/sts/v1.0/issueToken"),
    ],
    "gemini": [
        ("POST", "/v1alpha/auth_tokens"),
        ("POST", "/v1beta/auth_tokens:create"),
        ("POST", "/upload/v1beta/files"),
        ("POST", "/v1beta/files"),
        ("GET", "/v1beta/files/f"),
        ("POST", "/v1beta/cachedContents"),
        ("POST", "/v1beta/tunedModels"),
        ("POST", "/batch"),
    ],
    "gemini-code-assist": [
        ("POST", "oauth2.googleapis.com/token"),
        ("POST", "oauth2.googleapis.com/revoke"),
        ("POST", "www.googleapis.com/oauth2/v4/token"),
        ("POST", "www.googleapis.com/upload/drive/v3/files"),
        ("GET", "www.googleapis.com/drive/v3/files"),
    ],
    "vertex": [
        ("POST", "/v1/projects/-/serviceAccounts/sa:generateAccessToken"),
        ("POST", "/v1/projects/p/serviceAccounts/sa/keys"),
        ("POST", "/v1/projects/p/locations/l/customJobs"),
        ("POST", "/token"),
    ],
    "vertex-service-account": [
        ("POST", "/v1/projects/-/serviceAccounts/sa:generateAccessToken"),
        ("POST", "/v1/projects/p/serviceAccounts/sa/keys"),
        ("POST", "/token"),
    ],
    "aws-s3": [
        ("PUT", "/"),
        ("POST", "/"),
        ("DELETE", "/"),
        ("GET", "/v20180820/accessgrantsinstance/dataaccess"),
    ],
    "bedrock": [("POST", "/"), ("POST", "/async-invoke"), ("POST", "/model-invocation-job")],
    "bedrock-key": [("POST", "/"), ("POST", "/async-invoke"), ("POST", "/v1/files")],
    "openrouter": [
        ("POST", "/api/v1/keys"),
        ("GET", "/api/v1/keys"),
        ("POST", "/api/v1/auth/keys"),
        ("GET", "/api/v1/credits"),
    ],
    "mistral": [
        ("POST", "/v1/client/sessions"),
        ("POST", "/v1/files"),
        ("POST", "/v1/fine_tuning/jobs"),
        ("POST", "/v1/agents"),
    ],
    "perplexity": [("POST", "/generate_auth_token")],
    "groq": [("POST", "/openai/v1/files"), ("POST", "/openai/v1/batches")],
    "xai": [("POST", "/v1/realtime/client_secrets"), ("GET", "/v1/api-key")],
    "tavily": [("POST", "/extract"), ("POST", "/crawl")],
    "huggingface": [
        ("GET", "huggingface.co/api/models/o/r/xet-write-token/main"),
        ("GET", "huggingface.co/api/datasets/o/r/xet-write-token/main"),
        ("POST", "huggingface.co/api/repos/create"),
        ("POST", "huggingface.co/api/models/o/r/commit/main"),
        ("POST", "huggingface.co/o/r.git/git-receive-pack"),
        ("POST", "huggingface.co/o/r.git/info/lfs/objects/batch"),
        ("POST", "huggingface.co/api/spaces/o/r/secrets"),
        ("GET", "huggingface.co/api/settings/webhooks"),
        ("POST", "cas-server.xethub.hf.co/v1/shards"),
    ],
    "github": [
        ("POST", "api.github.com/graphql"),
        ("POST", "api.github.com/app/installations/1/access_tokens"),
        ("POST", "api.github.com/app-manifests/c/conversions"),
        ("POST", "api.github.com/repos/o/r/actions/runners/registration-token"),
        ("POST", "api.github.com/repos/o/r/actions/runners/generate-jitconfig"),
        ("POST", "api.github.com/repos/o/r/keys"),
        ("POST", "api.github.com/user/keys"),
        ("POST", "api.github.com/user/gpg_keys"),
        ("POST", "api.github.com/user/codespaces"),
        ("POST", "api.github.com/user/repos"),
        ("GET", "api.github.com/user/repos"),
        ("GET", "api.github.com/copilot_internal/v2/token"),
        ("GET", "api.github.com/repos/o/r/actions/secrets/public-key"),
        ("PUT", "api.github.com/repos/o/r/actions/secrets/S"),
        ("GET", "api.github.com/repos/o/r/actions/variables"),
        ("GET", "api.github.com/orgs/o/actions/secrets"),
        ("PUT", "api.github.com/repos/o/r/environments/e"),
        ("POST", "api.github.com/repos/o/r/hooks"),
        ("PUT", "api.github.com/repos/o/r/collaborators/ann"),
        ("PUT", "api.github.com/repos/o/r/contents/x"),
        ("DELETE", "api.github.com/repos/o/r/contents/x"),
        ("POST", "api.github.com/repos/o/r/git/refs"),
        ("PATCH", "api.github.com/repos/o/r/git/refs/heads/main"),
        ("DELETE", "api.github.com/repos/o/r/git/refs/heads/main"),
        ("POST", "api.github.com/repos/o/r/merges"),
        ("POST", "api.github.com/repos/o/r/merge-upstream"),
        ("PUT", "api.github.com/repos/o/r/pulls/1/merge"),
        ("PUT", "api.github.com/repos/o/r/pulls/1/update-branch"),
        ("POST", "api.github.com/repos/o/r/pulls/1/reviews"),
        ("POST", "api.github.com/repos/o/r/branches/b/rename"),
        ("PUT", "api.github.com/repos/o/r/branches/main/protection"),
        ("POST", "api.github.com/repos/o/r/rulesets"),
        ("PATCH", "api.github.com/repos/o/r"),
        ("DELETE", "api.github.com/repos/o/r"),
        ("POST", "api.github.com/repos/o/r/releases"),
        ("POST", "api.github.com/repos/o/r/generate"),
        ("POST", "api.github.com/repos/o/r/forks"),
        ("POST", "api.github.com/repos/o/r/transfer"),
        ("POST", "api.github.com/repos/o/r/dispatches"),
        ("POST", "api.github.com/repos/o/r/actions/workflows/ci.yml/dispatches"),
        ("POST", "api.github.com/repos/o/r/pages"),
        ("POST", "api.github.com/gists"),
        ("GET", "api.github.com/repositories/1/actions/secrets"),
        ("PUT", "objects.githubusercontent.com/x"),
        ("PUT", "github-cloud.s3.amazonaws.com/x"),
    ],
    "gitlab": [
        ("POST", "/api/graphql"),
        ("POST", "/api/v4/projects/1/access_tokens"),
        ("POST", "/api/v4/projects/acme%2Fwidgets/access_tokens"),
        ("POST", "/api/v4/personal_access_tokens/self/rotate"),
        ("POST", "/api/v4/projects/1/deploy_tokens"),
        ("POST", "/api/v4/projects/1/deploy_keys"),
        ("GET", "/api/v4/projects/1/variables"),
        ("GET", "/api/v4/projects/acme%2Fwidgets/variables"),
        ("GET", "/api/v4/groups/1/variables"),
        ("GET", "/api/v4/projects/1/pipelines/2/variables"),
        ("POST", "/api/v4/user/runners"),
        ("GET", "/api/v4/projects/1/runners"),
        ("POST", "/api/v4/projects/1/hooks"),
        ("POST", "/api/v4/projects/1/triggers"),
        ("POST", "/api/v4/projects/import"),
        ("POST", "/api/v4/import/github"),
        ("POST", "/api/v4/bulk_imports"),
        ("POST", "/oauth/token"),
        ("POST", "/api/v4/user/keys"),
        ("POST", "/api/v4/projects/1/fork"),
        ("POST", "/api/v4/projects"),
        ("POST", "/api/v4/projects/1/repository/commits"),
        ("PUT", "/api/v4/projects/1"),
        ("POST", "/api/v4/projects/1/members"),
        ("POST", "/api/v4/projects/1/protected_branches"),
    ],
    "gitea": [
        ("POST", "/api/v1/users/n/tokens"),
        ("POST", "/api/v1/user/keys"),
        ("POST", "/api/v1/repos/o/r/keys"),
        ("POST", "/api/v1/repos/o/r/hooks"),
        ("POST", "/api/v1/repos/migrate"),
        ("POST", "/api/v1/user/repos"),
        ("POST", "/api/v1/repos/o/r/pulls/1/merge"),
        ("PUT", "/api/v1/repos/o/r/contents/x"),
    ],
    "bitbucket": [
        ("GET", "api.bitbucket.org/2.0/repositories/o/r/pipelines_config/variables"),
        ("POST", "api.bitbucket.org/2.0/repositories/o/r/hooks"),
        ("POST", "api.bitbucket.org/2.0/repositories/o/r/deploy-keys"),
        ("POST", "api.bitbucket.org/2.0/repositories/o/r/pipelines"),
        ("POST", "api.bitbucket.org/2.0/repositories/o/r/src"),
        ("POST", "api.bitbucket.org/2.0/repositories/o/r/pullrequests/1/merge"),
        ("DELETE", "api.bitbucket.org/2.0/repositories/o/r"),
        ("POST", "api.bitbucket.org/2.0/snippets"),
    ],
    "azure-devops": [
        ("POST", "/org/_apis/tokens/pats"),
        ("POST", "/org/project/_apis/pipelines/1/runs"),
        ("GET", "/org/project/_apis/distributedtask/variablegroups"),
        ("GET", "/org/project/_apis/serviceendpoint/endpoints"),
        ("POST", "/org/project/_apis/git/repositories/r/pushes"),
        ("POST", "/org/_apis/hooks/subscriptions"),
    ],
    "slack": [
        ("POST", "slack.com/api/apps.connections.open"),
        ("POST", "slack.com/api/oauth.v2.access"),
        ("POST", "slack.com/api/tooling.tokens.rotate"),
        ("POST", "slack.com/api/auth.revoke"),
        ("POST", "slack.com/api/admin.users.invite"),
        ("POST", "slack.com/api/files.getUploadURLExternal"),
    ],
    "notion": [("POST", "/v1/file_uploads"), ("POST", "/v1/oauth/token")],
    "atlassian": [
        ("POST", "/rest/api/3/webhook"),
        ("DELETE", "/rest/api/3/issue/X-1"),
        ("POST", "/gateway/api/graphql"),
    ],
    "sentry": [
        ("POST", "/api/0/api-tokens/"),
        ("GET", "/api/0/projects/o/p/keys/"),
        ("POST", "/api/0/organizations/o/org-auth-tokens/"),
        ("POST", "/api/0/organizations/o/chunk-upload/"),
        ("POST", "/api/1/envelope/"),
    ],
    "stripe": [
        ("POST", "/v1/ephemeral_keys"),
        ("POST", "/v1/webhook_endpoints"),
        ("POST", "/v1/account_links"),
        ("POST", "/v1/refunds"),
        ("POST", "/v1/payouts"),
        ("POST", "/v1/transfers"),
        ("POST", "/v1/files"),
    ],
    "supabase": [
        ("GET", "/v1/projects/ref/api-keys"),
        ("GET", "/v1/projects/ref/secrets"),
        ("POST", "/v1/projects/ref/secrets"),
        ("POST", "/v1/projects/ref/database/query"),
        ("POST", "/v1/projects/ref/functions/deploy"),
        ("GET", "/v1/projects/ref/config/auth"),
    ],
    "vercel": [
        ("POST", "/v3/user/tokens"),
        ("GET", "/v9/projects/p/env"),
        ("GET", "/v1/projects/p/env/e"),
        ("POST", "/v13/deployments"),
        ("POST", "/v10/projects/p/env"),
    ],
    "cloudflare": [
        ("POST", "/client/v4/user/tokens"),
        ("GET", "/client/v4/user/tokens"),
        ("POST", "/client/v4/accounts/a/tokens"),
        ("POST", "/client/v4/zones/z/dns_records"),
        ("PUT", "/client/v4/accounts/a/workers/scripts/s"),
        ("PUT", "/client/v4/accounts/a/workers/scripts/s/secrets"),
        ("POST", "/client/v4/accounts/a/r2/temp-access-credentials"),
    ],
    "fly": [
        ("POST", "/v1/apps/a/machines/m/exec"),
        ("GET", "/v1/apps/a/secrets"),
        ("POST", "/v1/apps/a/deploy_token"),
        ("POST", "/v1/apps/a/machines"),
    ],
    "datadog": [
        ("GET", "/api/v2/api_keys"),
        ("POST", "/api/v2/api_keys"),
        ("POST", "/api/v2/application_keys"),
        ("POST", "/api/v2/current_user/application_keys"),
        ("POST", "/api/v1/api_key"),
    ],
    "npm-private": [
        ("PUT", "/widgets"),
        ("PUT", "/@acme%2fwidgets"),
        ("POST", "/-/npm/v1/tokens"),
        ("GET", "/-/npm/v1/tokens"),
        ("POST", "/-/npm/v1/oidc/token/exchange/package/widgets"),
        ("PUT", "/-/user/org.couchdb.user:ann"),
        ("POST", "/-/v1/login"),
        ("PUT", "/-/package/widgets/dist-tags/latest"),
    ],
    "oci-private": [
        ("POST", "/v2/acme/widgets/blobs/uploads/"),
        ("PUT", "/v2/acme/widgets/manifests/latest"),
        ("DELETE", "/v2/acme/widgets/manifests/latest"),
        ("GET", "/token"),
    ],
    "python-private": [("POST", "/legacy/"), ("POST", "/_/oidc/mint-token")],
    "cargo-private": [("PUT", "/api/v1/crates/new"), ("DELETE", "/api/v1/crates/c/1.0/yank")],
    "nuget-private": [("PUT", "/api/v2/package"), ("DELETE", "/api/v2/package/p/1.0")],
    "maven-private": [("PUT", "/releases/a/b/1.0/b.jar")],
}

# What each is for: allowed by the file itself, and so the control of the rows above.
OPEN = {
    "anthropic": [("POST", "/v1/messages"), ("GET", "/v1/models")],
    "claude": [("POST", "/v1/messages"), ("GET", "/api/oauth/profile")],
    "openai": [("POST", "/v1/responses"), ("POST", "/v1/chat/completions"), ("GET", "/v1/models")],
    "codex": [("POST", "/backend-api/codex/responses")],
    "codex-pat": [("POST", "chatgpt.com/backend-api/codex/responses")],
    "azure-openai": [("POST", "/openai/deployments/d/chat/completions")],
    "gemini": [("POST", "/v1beta/models/m:generateContent")],
    "gemini-code-assist": [("GET", "oauth2.googleapis.com/tokeninfo")],
    "vertex": [("POST", "/v1/projects/p/locations/l/publishers/g/models/m:generateContent")],
    "vertex-service-account": [
        ("POST", "/v1/projects/p/locations/l/publishers/g/models/m:generateContent"),
    ],
    "aws-s3": [("GET", "/"), ("GET", "/a/b.txt"), ("HEAD", "/a/b.txt")],
    "bedrock": [("POST", "/model/m/invoke"), ("POST", "/model/arn:aws:x%2Fy/converse")],
    "bedrock-key": [("POST", "/model/m/converse-stream")],
    "openrouter": [("POST", "/api/v1/chat/completions"), ("GET", "/api/v1/key")],
    "mistral": [("POST", "/v1/chat/completions")],
    "perplexity": [("POST", "/chat/completions")],
    "groq": [("POST", "/openai/v1/chat/completions")],
    "xai": [("POST", "/v1/chat/completions")],
    "tavily": [("POST", "/search")],
    "huggingface": [
        ("GET", "huggingface.co/api/models/o/r"),
        ("GET", "huggingface.co/o/r/resolve/main/config.json"),
        ("GET", "huggingface.co/api/models/o/r/xet-read-token/main"),
    ],
    "github": [
        ("GET", "api.github.com/repos/acme/widgets"),
        ("GET", "api.github.com/repos/acme/widgets/contents/src/x"),
        ("GET", "api.github.com/repos/acme/widgets/pulls/1"),
    ],
    "gitlab": [("GET", "/api/v4/projects/acme%2Fwidgets/issues")],
    "gitea": [("GET", "/api/v1/repos/acme/widgets/contents/x")],
    "bitbucket": [("GET", "api.bitbucket.org/2.0/repositories/acme/widgets/src/main/x")],
    "slack": [("GET", "slack.com/api/conversations.list")],
    "notion": [("POST", "/v1/search"), ("POST", "/v1/databases/d/query")],
    "atlassian": [("POST", "/rest/api/3/search/jql"), ("GET", "/rest/api/3/issue/X-1")],
    "sentry": [("GET", "/api/0/organizations/o/issues/")],
    "stripe": [("GET", "/v1/customers"), ("GET", "/v1/refunds")],
    "supabase": [("GET", "/v1/projects")],
    "vercel": [("GET", "/v6/deployments")],
    "cloudflare": [("GET", "/client/v4/zones"), ("GET", "/client/v4/zones/z/dns_records")],
    "fly": [("GET", "/v1/apps/a/machines")],
    "datadog": [("GET", "/api/v1/monitor"), ("POST", "/api/v2/logs/events/search")],
    "npm-private": [
        ("GET", "/widgets"),
        ("GET", "/@acme%2fwidgets"),
        ("POST", "/-/npm/v1/security/audits"),
    ],
    "oci-private": [("GET", "/v2/acme/widgets/manifests/latest")],
    "python-private": [("GET", "/simple/widgets/")],
    "cargo-private": [("GET", "/index/config.json")],
    "nuget-private": [("GET", "/v3/index.json")],
    "maven-private": [("GET", "/releases/a/b/1.0/b.jar")],
}


def entry(name: str, target: str) -> tuple[HostTemplate, RequestPath]:
    """The part of a service that a row is about, and the path as a request has it."""
    host_name, _, path = target.partition("/")
    hosts = service(name).hosts
    if host_name:
        found = next(h for h in hosts if any(p.matches(Host.parse(host_name)) for p in h.hosts))
    else:
        found = hosts[0]
    return found, RequestPath.parse("/" + path, opaque_slash=found.encoded_slash)


def speaks(rules: tuple[AccessRule, ...], method: str, segments: tuple[str, ...]) -> list[str]:
    return [r.text for r in rules if r.speaks_of(method) and r.path.folded().matches(segments)]


def guards(name: str, method: str, target: str) -> list[str]:
    host, path = entry(name, target)
    return speaks(host.deny, method, path.folded())


ROWS = [(name, *row) for name, rows in GUARDED.items() for row in rows]
CONTROLS = [(name, *row) for name, rows in OPEN.items() for row in rows]


@pytest.mark.parametrize(("name", "method", "target"), ROWS)
def test_a_dangerous_endpoint_is_guarded_and_a_broad_allow_does_not_open_it(
    name: str, method: str, target: str
) -> None:
    """I3: the policy's `* /**` is no name of the endpoint, so the guard still speaks."""
    host, _ = entry(name, target)
    assert guards(name, method, target)
    for broad in ("* /**", "GET,POST,PUT,PATCH,DELETE /**"):
        assert not any(guard.covers(AccessRule.parse(broad)) for guard in host.deny)


@pytest.mark.parametrize(("name", "method", "target"), CONTROLS)
def test_what_a_service_is_for_is_allowed_and_not_guarded(
    name: str, method: str, target: str
) -> None:
    """The control: guards are not everything."""
    host, path = entry(name, target)
    one_segment = host.encoded_slash and "%2F" in target
    repository = ("acme/widgets",) if one_segment else ("acme", "widgets")
    rules = (*host.allow, *(granted(rule, repository) for rule in host.api_read))
    assert speaks(rules, method, path.folded())
    assert not guards(name, method, target)


@pytest.mark.parametrize("name", GUARDED)
def test_a_dangerous_endpoint_is_guarded_in_any_case_of_its_letters(name: str) -> None:
    """I4: some servers do not look at case."""
    for method, target in GUARDED[name]:
        host_name, _, path = target.partition("/")
        assert guards(name, method, f"{host_name}/{path.upper()}"), target


def test_every_guarded_service_has_its_control() -> None:
    assert set(OPEN) >= set(GUARDED) - {"azure-devops"}  # whose rules are opened by hand
