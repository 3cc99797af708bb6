"""Every endpoint that is known to hand out a token, a key or a session is guarded (I1, I3).

What such an endpoint answers works without Keyhole, and no field of the answer says so: the token
is in its body. So it is not asked at all, unless a policy opens it by its name. Every service of
the catalogue is here, with its endpoints or among those that are known to have none; a new entry of
the catalogue must be added.
"""

from __future__ import annotations

import pytest

from tests.inject.shelf import NAMES
from tests.inject.test_guards import entry, guards, speaks

GITHUB_API = [
    ("POST", "/app/installations/1/access_tokens"),
    ("POST", "/app-manifests/c/conversions"),
    ("POST", "/applications/c/token/scoped"),
    ("PATCH", "/applications/c/token"),
    ("POST", "/repos/o/r/actions/runners/registration-token"),
    ("POST", "/repos/o/r/actions/runners/remove-token"),
    ("POST", "/repos/o/r/actions/runners/generate-jitconfig"),
    ("POST", "/orgs/o/actions/runners/registration-token"),
    ("POST", "/orgs/o/actions/runners/generate-jitconfig"),
    ("POST", "/enterprises/e/actions/runners/registration-token"),
    ("GET", "/copilot_internal/v2/token"),
    ("POST", "/user/keys"),
    ("POST", "/repos/o/r/keys"),
    ("POST", "/user/codespaces"),
]
GITEA = [
    ("POST", "/api/v1/users/n/tokens"),
    ("POST", "/api/v1/user/applications/oauth2"),
    ("GET", "/api/v1/repos/o/r/actions/runners/registration-token"),
    ("POST", "/api/v1/repos/o/r/actions/runners/registration-token"),
    ("GET", "/api/v1/orgs/o/actions/runners/registration-token"),
    ("GET", "/api/v1/user/actions/runners/registration-token"),
    ("GET", "/api/v1/admin/runners/registration-token"),
    ("POST", "/login/oauth/access_token"),
    ("GET", "/v2/token"),
]
CONSOLES = [
    # Artifactory, Nexus.
    ("POST", "/artifactory/api/security/token"),
    ("GET", "/artifactory/api/security/apiKey"),
    ("POST", "/access/api/v1/tokens"),
    ("GET", "/service/rest/v1/security/user-tokens"),
]
ATLASSIAN = [("POST", "/rest/auth/1/session"), ("PUT", "/rest/pat/latest/tokens")]
GOOGLE = [
    ("POST", "/v1/projects/-/serviceAccounts/sa:generateAccessToken"),
    ("POST", "/v1/projects/-/serviceAccounts/sa:generateIdToken"),
    ("POST", "/v1/projects/-/serviceAccounts/sa:signJwt"),
    ("POST", "/v1/projects/p/serviceAccounts/sa/keys"),
    ("POST", "/token"),
    ("POST", "/v1/token"),
]


def at(host: str, rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(method, host + path) for method, path in rows]


MINTING: dict[str, list[tuple[str, str]]] = {
    "airtable": [("POST", "/oauth2/v1/token")],
    "anthropic": [
        ("POST", "/v1/oauth/token"),
        ("POST", "/api/oauth/claude_cli/create_api_key"),
        ("POST", "/v1/organizations/api_keys"),
        ("POST", "/v1/vaults/v/credentials"),
        ("POST", "/v1/sessions"),
    ],
    "asana": [("POST", "/-/oauth_token"), ("POST", "/api/1.0/batch")],
    "atlassian": ATLASSIAN,
    "atlassian-api": [("POST", "/oauth/token"), ("POST", "/admin/v1/orgs/o/api-tokens")],
    "aws-s3": [
        ("GET", "/v20180820/accessgrantsinstance/dataaccess"),
        ("POST", "/"),  # STS and IAM speak at the root
    ],
    "azure-artifacts": [("POST", "/o/_apis/tokens/pats"), ("GET", "/o/_apis/tokens/pats")],
    "azure-devops": [
        ("POST", "/o/_apis/tokens/pats"),
        ("POST", "/o/_apis/Token/SessionTokens"),
        ("POST", "/o/_apis/delegatedauth/registration"),
        ("POST", "/o/p/_apis/distributedtask/hubs/h/plans/x/jobs/j/oidctoken"),
        ("POST", "/o/p/_apis/serviceendpoint/endpointproxy"),
    ],
    "azure-openai": [
        ("POST", "/openai/v1/realtime/client_secrets"),
        ("POST", "/openai/realtimeapi/sessions"),
        ("POST", "/sts/v1.0/issueToken"),
        ("GET", "/api/projects/p/connections/c"),
    ],
    "bedrock": [("POST", "/")],
    "bedrock-key": [("POST", "/")],
    "bitbucket": [
        ("POST", "bitbucket.org/site/oauth2/access_token"),
        ("POST", "api.bitbucket.org/2.0/repositories/o/r/deploy-keys"),
        ("POST", "api.bitbucket.org/2.0/users/u/ssh-keys"),
    ],
    "bitbucket-api-token": [("POST", "/site/oauth2/access_token")],
    "bitbucket-datacenter": [
        ("PUT", "/rest/access-tokens/latest/users/u"),
        ("PUT", "/rest/access-tokens/1.0/projects/p/repos/r"),
        ("POST", "/rest/oauth2/latest/token"),
        ("POST", "/rest/ssh/latest/keys"),
    ],
    "buildkite": [
        ("POST", "/v2/organizations/o/clusters/c/tokens"),
        ("GET", "/v2/organizations/o/clusters/c/tokens"),
        ("GET", "/v2/access-token"),
        ("POST", "/v2/organizations/o/packages/registries/r/tokens"),
    ],
    "cargo-private": [("PUT", "/api/v1/me/tokens"), ("PUT", "/api/v1/tokens"), *CONSOLES],
    "circleci": [
        ("POST", "/api/v2/project/gh/o/r/checkout-key"),
        ("POST", "/api/v2/runner/token"),
        ("POST", "/api/v3/runner/token"),
        ("POST", "/api/v1.1/project/gh/o/r/token"),
    ],
    "claude": [
        ("POST", "/v1/oauth/token"),
        ("POST", "/api/oauth/claude_cli/create_api_key"),
        ("POST", "/v1/organizations/api_keys"),
        ("POST", "/v1/code/sessions"),
        ("POST", "/v1/sessions"),
    ],
    "cloudflare": [
        ("POST", "/client/v4/user/tokens"),
        ("PUT", "/client/v4/user/tokens/t/value"),
        ("POST", "/client/v4/accounts/a/tokens"),
        ("POST", "/client/v4/accounts/a/r2/temp-access-credentials"),
        ("POST", "/client/v4/accounts/a/access/service_tokens"),
        ("GET", "/client/v4/accounts/a/cfd_tunnel/t/token"),
        ("POST", "/client/v4/accounts/a/cfd_tunnel"),
        ("POST", "/client/v4/accounts/a/workers/scripts/s/edge-preview"),
        ("GET", "/client/v4/accounts/a/workers/subdomain/edge-preview"),
        ("POST", "/client/v4/accounts/a/stream/v/token"),
        ("POST", "/client/v4/accounts/a/realtime/kit/app/meetings/m/participants"),
        ("POST", "/client/v4/accounts/a/calls/turn_keys"),
        ("POST", "/client/v4/accounts/a/images/v2/direct_upload"),
    ],
    "codeberg": GITEA,
    "codestral": [("POST", "/v1/client/sessions")],
    "codex": [
        ("GET", "/api/auth/session"),
        ("POST", "/oauth/token"),
        ("POST", "/backend-api/codex/realtime/calls"),
        ("POST", "/backend-api/codex/agent/register"),
        ("GET", "/backend-api/connectors/links"),
    ],
    "codex-pat": [
        ("POST", "auth.openai.com/oauth/token"),
        ("POST", "auth.openai.com/api/accounts/deviceauth/token"),
        ("GET", "chatgpt.com/api/auth/session"),
        ("POST", "chatgpt.com/backend-api/codex/realtime/calls"),
    ],
    "cohere": [("POST", "/v1/connectors/c/oauth/authorize")],
    "datadog": [
        ("POST", "/api/v2/api_keys"),
        ("POST", "/api/v2/current_user/application_keys"),
        ("POST", "/api/v2/service_accounts/s/application_keys"),
        ("POST", "/api/v2/personal_access_tokens"),
        ("POST", "/api/v1/api_key"),
        ("POST", "/api/v2/remote_config/products/x"),
        ("POST", "/api/v2/delegated-token"),
        ("POST", "/oauth2/v1/token"),
    ],
    "deepgram": [("POST", "/v1/auth/grant"), ("POST", "/v1/projects/p/keys")],
    "digitalocean": [
        ("GET", "/v2/kubernetes/clusters/c/kubeconfig"),
        ("GET", "/v2/kubernetes/clusters/c/credentials"),
        ("GET", "/v2/registry/docker-credentials"),
        ("POST", "/v2/spaces/keys"),
        ("POST", "/v2/tokens"),
        ("POST", "/v2/oauth/token"),
        ("POST", "/v2/gen-ai/agents/a/api_keys"),
        ("POST", "/v2/account/keys"),
    ],
    "elevenlabs": [
        ("POST", "/v1/single-use-token/realtime_scribe"),
        ("GET", "/v1/convai/conversation/get-signed-url"),
        ("GET", "/v1/convai/conversation/token"),
        ("POST", "/v1/service-accounts/s/api-keys"),
        ("GET", "/v1/user"),
    ],
    "exa": [("POST", "/team-management/api-keys"), ("POST", "/api-keys")],
    "figma": [("POST", "/v1/oauth/token"), ("POST", "/v1/oauth/refresh")],
    "fireworks": [("POST", "/v1/accounts/a/users/u/apiKeys")],
    "fly": [
        ("POST", "/v1/apps/a/deploy_token"),
        ("POST", "/v1/tokens/oidc"),
        ("POST", "/v1/tokens/kms"),
        ("POST", "/v1/orgs/o/tokens"),
    ],
    "forgejo": GITEA,
    "gemini": [("POST", "/v1alpha/auth_tokens"), ("POST", "/v1beta/auth_tokens:create")],
    "gemini-code-assist": [
        ("POST", "oauth2.googleapis.com/token"),
        ("POST", "oauth2.googleapis.com/device/code"),
        ("POST", "www.googleapis.com/oauth2/v4/token"),
        ("POST", "www.googleapis.com/oauth2/v3/token"),
    ],
    "ghe-cloud": [*GITHUB_API, ("POST", "/login/oauth/access_token")],
    "gitea": GITEA,
    "github": [
        *at("api.github.com", GITHUB_API),
        ("POST", "github.com/login/oauth/access_token"),
        ("POST", "github.com/login/device/code"),
        ("GET", "github.com/settings/tokens"),
    ],
    "github-copilot": [
        ("GET", "/copilot_internal/v2/token"),
        ("POST", "/models/session"),
        ("POST", "/agents/sessions"),
    ],
    "github-enterprise": [
        *((method, f"/api/v3{path}") for method, path in GITHUB_API),
        ("POST", "/login/oauth/access_token"),
    ],
    "github-packages": [
        ("POST", "npm.pkg.github.com/-/npm/v1/tokens"),
        ("PUT", "npm.pkg.github.com/-/user/org.couchdb.user:ann"),
        ("POST", "npm.pkg.github.com/-/v1/login"),
        ("POST", "maven.pkg.github.com/token"),
    ],
    "gitlab": [
        ("POST", "/oauth/token"),
        ("POST", "/api/v4/projects/1/access_tokens"),
        ("POST", "/api/v4/groups/1/access_tokens"),
        ("POST", "/api/v4/personal_access_tokens/self/rotate"),
        ("POST", "/api/v4/user/personal_access_tokens"),
        ("POST", "/api/v4/users/1/personal_access_tokens"),
        ("POST", "/api/v4/users/1/impersonation_tokens"),
        ("POST", "/api/v4/projects/1/deploy_tokens"),
        ("POST", "/api/v4/projects/1/triggers"),
        ("POST", "/api/v4/user/runners"),
        ("POST", "/api/v4/runners/reset_registration_token"),
        ("POST", "/api/v4/projects/1/runners/reset_registration_token"),
        ("POST", "/api/v4/projects/1/cluster_agents/1/tokens"),
        ("GET", "/api/v4/projects/1/secure_files/1/download"),
        ("GET", "/jwt/auth"),
        ("POST", "/api/v4/code_suggestions/direct_access"),
        ("POST", "/api/v4/ai/duo_workflows/direct_access"),
    ],
    "go-private": CONSOLES,
    "grafana-cloud": [
        ("POST", "/api/auth/keys"),
        ("POST", "/api/serviceaccounts/1/tokens"),
        ("POST", "/api/user/auth-tokens"),
        ("POST", "/login"),
    ],
    "huggingface": [
        ("GET", "huggingface.co/api/models/o/r/xet-write-token/main"),
        ("GET", "huggingface.co/api/datasets/o/r/xet-write-token/main"),
        ("POST", "huggingface.co/oauth/token"),
        ("GET", "huggingface.co/api/spaces/o/r/jwt"),
        ("POST", "huggingface.co/api/settings/tokens"),
    ],
    "linear": [("POST", "api.linear.app/oauth/token")],
    "maven-private": CONSOLES,
    "mistral": [("POST", "/v1/client/sessions"), ("POST", "/v1/connectors/c/token")],
    "neon": [
        ("POST", "/api/v2/api_keys"),
        ("POST", "/api/v2/organizations/o/api_keys"),
        ("GET", "/api/v2/projects/p/connection_uri"),
        ("GET", "/api/v2/projects/p/branches/b/roles/r/reveal_password"),
        ("POST", "/api/v2/projects/p/branches/b/roles/r/reset_password"),
    ],
    "netlify": [
        ("POST", "/oauth/token"),
        ("POST", "/api/v1/oauth/tickets/t/exchange"),
        ("POST", "/api/v1/deploy_keys"),
    ],
    "notion": [("POST", "/v1/oauth/token")],
    "npm-private": [
        ("POST", "/-/npm/v1/tokens"),
        ("POST", "/-/npm/v1/oidc/token/exchange/package/p"),
        ("PUT", "/-/user/org.couchdb.user:ann"),
        ("POST", "/-/v1/login"),
        ("GET", "/artifactory/api/npm/auth"),
        *CONSOLES,
    ],
    "nuget-private": [("POST", "/api/v2/package/create-verification-key/p"), *CONSOLES],
    "oci-private": [
        ("GET", "/token"),
        ("POST", "/token"),
        ("GET", "/v2/token"),
        ("GET", "/v2/auth"),
        ("GET", "/service/token"),
        ("GET", "/jwt/auth"),
        ("POST", "/oauth2/token"),
        ("POST", "/oauth2/exchange"),
        ("POST", "/api/v2.0/robots"),
        *CONSOLES,
    ],
    "openai": [
        ("POST", "/v1/realtime/client_secrets"),
        ("POST", "/v1/realtime/sessions"),
        ("POST", "/v1/realtime/transcription_sessions"),
        ("POST", "/v1/realtime/translations/client_secrets"),
        ("POST", "/v1/realtime/calls"),
        ("POST", "/v1/chatkit/sessions"),
        ("POST", "/v1/organization/admin_api_keys"),
        ("POST", "/v1/organization/projects/p/service_accounts"),
        ("POST", "/v1/projects/p/service_accounts"),
    ],
    "openrouter": [("POST", "/api/v1/keys"), ("POST", "/api/v1/auth/keys")],
    "pagerduty": [("POST", "/oauth/token"), ("POST", "/oauth_delegations/revoke_requests")],
    "perplexity": [("POST", "/generate_auth_token")],
    "python-private": [("POST", "/_/oidc/mint-token"), *CONSOLES],
    "render": [
        ("GET", "/v1/postgres/p/connection-info"),
        ("POST", "/v1/postgres/p/credentials"),
        ("POST", "/v1/registrycredentials"),
    ],
    "resend": [("POST", "/api-keys"), ("POST", "/oauth/token")],
    "sendgrid": [
        ("POST", "/v3/api_keys"),
        ("POST", "/v3/subusers"),
    ],
    "sentry": [
        ("POST", "/api/0/api-tokens/"),
        ("POST", "/oauth/token/"),
        ("POST", "/api/0/organizations/o/org-auth-tokens/"),
        ("POST", "/api/0/sentry-app-installations/i/authorizations/"),
        ("POST", "/api/0/projects/o/p/keys/"),
    ],
    "slack": [
        ("POST", "slack.com/api/oauth.v2.access"),
        ("POST", "slack.com/api/oauth.v2.exchange"),
        ("POST", "slack.com/api/openid.connect.token"),
        ("POST", "slack.com/api/tooling.tokens.rotate"),
        ("POST", "slack.com/api/apps.connections.open"),
        ("POST", "slack.com/api/rtm.connect"),
    ],
    "stripe": [
        ("POST", "/v1/ephemeral_keys"),
        ("POST", "/v1/account_links"),
        ("POST", "/v1/accounts/a/login_links"),
        ("POST", "/v1/account_sessions"),
        ("POST", "/v1/customer_sessions"),
        ("POST", "/v1/billing_portal/sessions"),
        ("POST", "/v1/terminal/connection_tokens"),
        ("POST", "/v1/stripecli/sessions"),
        ("POST", "/oauth/token"),
    ],
    "supabase": [
        ("GET", "/v1/projects/r/api-keys"),
        ("POST", "/v1/projects/r/api-keys"),
        ("POST", "/v1/projects/r/cli/login-role"),
        ("POST", "/v1/oauth/token"),
        ("POST", "/v1/projects/r/claim-token"),
        ("GET", "/v1/projects/r/config/auth/signing-keys"),
    ],
    "supabase-project": [
        ("POST", "/auth/v1/token"),
        ("POST", "/auth/v1/admin/generate_link"),
        ("POST", "/auth/v1/admin/users"),
        ("POST", "/storage/v1/object/sign/b/x"),
        ("POST", "/storage/v1/object/upload/sign/b/x"),
    ],
    "tavily": [("POST", "/generate-keys"), ("POST", "/keys")],
    "together": [("POST", "/v1/projects/p/api_keys"), ("POST", "/api-keys")],
    "twilio": [
        ("POST", "/2010-04-01/Accounts/A/Keys.json"),
        ("POST", "/2010-04-01/Accounts/A/Tokens.json"),
        ("POST", "/2010-04-01/Accounts.json"),
        ("POST", "/2010-04-01/Accounts/A/SigningKeys.json"),
        ("GET", "/2010-04-01/Accounts/A.json"),
    ],
    "vercel": [
        ("POST", "/v3/user/tokens"),
        ("POST", "/v1/projects/p/token"),
        ("PATCH", "/v1/projects/p/protection-bypass"),
        ("POST", "/v1/edge-config/e/token"),
        ("POST", "/v2/oauth/access_token"),
        ("POST", "/login/oauth/token"),
        ("POST", "/v1/integrations/sso/token"),
        ("POST", "/v1/storage/stores/s/secrets"),
    ],
    "vertex": GOOGLE,
    "vertex-service-account": GOOGLE,
    "xai": [("POST", "/v1/realtime/client_secrets"), ("POST", "/auth/teams/t/api-keys")],
}

NONE_KNOWN = frozenset("brave-search cerebras deepseek groq replicate shortcut voyage".split())
"""Services whose hosts in the catalogue have no such endpoint; their keys are made in a console."""

HANDED_OUT = {
    "huggingface": [("GET", "huggingface.co/api/models/o/r/xet-read-token/main")],
}
"""What the catalogue allows all the same, and says so in a note of its entry: a token that reads
one repository, without which no large file can be had."""

ROWS = [(name, *row) for name, rows in MINTING.items() for row in rows]


def test_every_service_of_the_catalogue_was_looked_at() -> None:
    assert set(MINTING) | NONE_KNOWN == set(NAMES)
    assert not set(MINTING) & NONE_KNOWN


@pytest.mark.parametrize(("name", "method", "target"), ROWS)
def test_what_hands_out_a_token_is_guarded(name: str, method: str, target: str) -> None:
    """I1: no broad `allow` opens it, and no entry of the catalogue does."""
    assert guards(name, method, target)


@pytest.mark.parametrize("name", HANDED_OUT)
def test_what_is_handed_out_all_the_same_is_said(name: str) -> None:
    """The control: these are allowed, so a guard is something else than silence."""
    for method, target in HANDED_OUT[name]:
        host, path = entry(name, target)
        assert speaks(host.allow, method, path.folded())
        assert not guards(name, method, target)
