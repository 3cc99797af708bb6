"""Every endpoint that is known to hand out a token, a key or a session is guarded (I1, I3).

What such an endpoint answers works without Keyhole, and no field of the answer says so: the token
is in its body. So it is not asked at all, unless a policy opens it by its name. Every service of
the catalogue is here, with its endpoints or among those that are known to have none; a new entry of
the catalogue must be added.
"""

from __future__ import annotations

import pytest

from tests.rigs.inject.shelf import NAMES, by_service, pairs, service
from tests.unit.inject.test_catalogue_guards import check_guarded, entry, guards, speaks

GITHUB_API = pairs("""
    POST /app/installations/1/access_tokens /app-manifests/c/conversions
        /applications/c/token/scoped /repos/o/r/actions/runners/registration-token
        /repos/o/r/actions/runners/remove-token /repos/o/r/actions/runners/generate-jitconfig
        /orgs/o/actions/runners/registration-token /orgs/o/actions/runners/generate-jitconfig
        /enterprises/e/actions/runners/registration-token /user/keys /repos/o/r/keys
        /user/codespaces
    PATCH /applications/c/token
    GET /copilot_internal/v2/token
""")
GITEA = pairs("""
    POST /api/v1/users/n/tokens /api/v1/user/applications/oauth2
        /api/v1/repos/o/r/actions/runners/registration-token /login/oauth/access_token
    GET /api/v1/repos/o/r/actions/runners/registration-token
        /api/v1/orgs/o/actions/runners/registration-token
        /api/v1/user/actions/runners/registration-token /api/v1/admin/runners/registration-token
        /v2/token
""")
CONSOLES = pairs("""
    POST /artifactory/api/security/token /access/api/v1/tokens
    GET /artifactory/api/security/apiKey /service/rest/v1/security/user-tokens
""")
"""Artifactory, Nexus."""
GOOGLE = pairs("""
    POST /v1/projects/-/serviceAccounts/sa:generateAccessToken
        /v1/projects/-/serviceAccounts/sa:generateIdToken
        /v1/projects/-/serviceAccounts/sa:signJwt /v1/projects/p/serviceAccounts/sa/keys /token
        /v1/token
""")

# `aws-s3`, `bedrock`: STS and IAM speak at the root.
MINTING = by_service("""
airtable: POST /oauth2/v1/token
amp: POST /api/auth/token
anthropic: POST /v1/oauth/token /api/oauth/claude_cli/create_api_key /v1/organizations/api_keys
        /v1/vaults/v/credentials /v1/sessions
asana: POST /-/oauth_token /api/1.0/batch
atlassian: POST /rest/auth/1/session PUT /rest/pat/latest/tokens
atlassian-api: POST /oauth/token /admin/v1/orgs/o/api-tokens
augment: POST /token
aws: POST /v1/authorization-token /sessions /workspaces/w/apikeys
    GET /federation/credentials /role-aliases/r/credentials /user/federate/i
aws-s3: GET /v20180820/accessgrantsinstance/dataaccess POST /
azure-artifacts: POST /o/_apis/tokens/pats GET /o/_apis/tokens/pats
azure-devops: POST /o/_apis/tokens/pats /o/_apis/Token/SessionTokens
        /o/_apis/delegatedauth/registration
        /o/p/_apis/distributedtask/hubs/h/plans/x/jobs/j/oidctoken
        /o/p/_apis/serviceendpoint/endpointproxy
azure-openai: POST /openai/v1/realtime/client_secrets /openai/realtimeapi/sessions
        /sts/v1.0/issueToken
    GET /api/projects/p/connections/c
bedrock: POST /
bedrock-key: POST /
bitbucket: POST bitbucket.org/site/oauth2/access_token
        api.bitbucket.org/2.0/repositories/o/r/deploy-keys api.bitbucket.org/2.0/users/u/ssh-keys
bitbucket-api-token: POST /site/oauth2/access_token
bitbucket-datacenter: PUT /rest/access-tokens/latest/users/u
        /rest/access-tokens/1.0/projects/p/repos/r
    POST /rest/oauth2/latest/token /rest/ssh/latest/keys
buildkite: POST /v2/organizations/o/clusters/c/tokens
        /v2/organizations/o/packages/registries/r/tokens
    GET /v2/organizations/o/clusters/c/tokens /v2/access-token
cargo-private: PUT /api/v1/me/tokens /api/v1/tokens
circleci: POST /api/v2/project/gh/o/r/checkout-key /api/v2/runner/token /api/v3/runner/token
        /api/v1.1/project/gh/o/r/token
claude: POST /v1/oauth/token /api/oauth/claude_cli/create_api_key /v1/organizations/api_keys
        /v1/code/sessions /v1/sessions
cloudflare: POST /client/v4/user/tokens /client/v4/accounts/a/tokens
        /client/v4/accounts/a/r2/temp-access-credentials /client/v4/accounts/a/access/service_tokens
        /client/v4/accounts/a/cfd_tunnel /client/v4/accounts/a/workers/scripts/s/edge-preview
        /client/v4/accounts/a/stream/v/token
        /client/v4/accounts/a/realtime/kit/app/meetings/m/participants
        /client/v4/accounts/a/calls/turn_keys /client/v4/accounts/a/images/v2/direct_upload
    PUT /client/v4/user/tokens/t/value
    GET /client/v4/accounts/a/cfd_tunnel/t/token
        /client/v4/accounts/a/workers/subdomain/edge-preview
codestral: POST /v1/client/sessions
codex: GET /api/auth/session /backend-api/connectors/links
    POST /oauth/token /backend-api/codex/realtime/calls /backend-api/codex/agent/register
codex-pat: POST auth.openai.com/oauth/token auth.openai.com/api/accounts/deviceauth/token
        chatgpt.com/backend-api/codex/realtime/calls
    GET chatgpt.com/api/auth/session
cohere: POST /v1/connectors/c/oauth/authorize
cursor: POST /auth/exchange_user_api_key /oauth/token /aiserver.v1.DashboardService/CreateUserApiKey
    GET /auth/poll
dashscope: POST /api/v1/tokens
datadog: POST /api/v2/api_keys /api/v2/current_user/application_keys
        /api/v2/service_accounts/s/application_keys /api/v2/personal_access_tokens /api/v1/api_key
        /api/v2/remote_config/products/x /api/v2/delegated-token /oauth2/v1/token
deepgram: POST /v1/auth/grant /v1/projects/p/keys
digitalocean: GET /v2/kubernetes/clusters/c/kubeconfig /v2/kubernetes/clusters/c/credentials
        /v2/registry/docker-credentials
    POST /v2/spaces/keys /v2/tokens /v2/oauth/token /v2/gen-ai/agents/a/api_keys /v2/account/keys
elevenlabs: POST /v1/single-use-token/realtime_scribe /v1/service-accounts/s/api-keys
    GET /v1/convai/conversation/get-signed-url /v1/convai/conversation/token /v1/user
exa: POST /team-management/api-keys /api-keys
factory: POST /api/cli/auth/token
figma: POST /v1/oauth/token /v1/oauth/refresh
fireworks: POST /v1/accounts/a/users/u/apiKeys
fly: POST /v1/apps/a/deploy_token /v1/tokens/oidc /v1/tokens/kms /v1/orgs/o/tokens
gemini: POST /v1alpha/auth_tokens /v1beta/auth_tokens:create
gemini-code-assist: POST oauth2.googleapis.com/token oauth2.googleapis.com/device/code
        www.googleapis.com/oauth2/v4/token www.googleapis.com/oauth2/v3/token
ghe-cloud: POST /login/oauth/access_token
github: POST github.com/login/oauth/access_token github.com/login/device/code
    GET github.com/settings/tokens
github-copilot: GET /copilot_internal/v2/token api.github.com/copilot_internal/v2/token
    POST /models/session /agents/sessions
github-enterprise: POST /login/oauth/access_token
github-packages: POST npm.pkg.github.com/-/npm/v1/tokens npm.pkg.github.com/-/v1/login
        maven.pkg.github.com/token
    PUT npm.pkg.github.com/-/user/org.couchdb.user:ann
gitlab: POST /oauth/token /api/v4/projects/1/access_tokens /api/v4/groups/1/access_tokens
        /api/v4/personal_access_tokens/self/rotate /api/v4/user/personal_access_tokens
        /api/v4/users/1/personal_access_tokens /api/v4/users/1/impersonation_tokens
        /api/v4/projects/1/deploy_tokens /api/v4/projects/1/triggers /api/v4/user/runners
        /api/v4/runners/reset_registration_token /api/v4/projects/1/runners/reset_registration_token
        /api/v4/projects/1/cluster_agents/1/tokens /api/v4/code_suggestions/direct_access
        /api/v4/ai/duo_workflows/direct_access
    GET /api/v4/projects/1/secure_files/1/download /jwt/auth
google-cloud: POST storage.googleapis.com/storage/v1/projects/p/hmacKeys
        storage.googleapis.com/google.storage.v2.Storage/CreateHmacKey
        firestore.googleapis.com/v1/projects/p/databases/d/userCreds/u:resetPassword
grafana-cloud: POST /api/auth/keys /api/serviceaccounts/1/tokens /api/user/auth-tokens /login
huggingface: GET huggingface.co/api/models/o/r/xet-write-token/main
        huggingface.co/api/datasets/o/r/xet-write-token/main huggingface.co/api/spaces/o/r/jwt
    POST huggingface.co/oauth/token huggingface.co/api/settings/tokens
kimi: POST /api/oauth/token
kubernetes: POST /api/v1/namespaces/n/serviceaccounts/s/token
        /apis/certificates.k8s.io/v1/certificatesigningrequests
linear: POST api.linear.app/oauth/token
mcp: POST /token /register /oauth2/token GET /authorize
minimax: POST /oauth/token
mistral: POST /v1/client/sessions /v1/connectors/c/token
neon: POST /api/v2/api_keys /api/v2/organizations/o/api_keys
        /api/v2/projects/p/branches/b/roles/r/reset_password
    GET /api/v2/projects/p/connection_uri /api/v2/projects/p/branches/b/roles/r/reveal_password
netlify: POST /oauth/token /api/v1/oauth/tickets/t/exchange /api/v1/deploy_keys
notion: POST /v1/oauth/token
npm-private: POST /-/npm/v1/tokens /-/npm/v1/oidc/token/exchange/package/p /-/v1/login
    PUT /-/user/org.couchdb.user:ann
    GET /artifactory/api/npm/auth
nuget-private: POST /api/v2/package/create-verification-key/p
oci-private: GET /token /v2/token /v2/auth /service/token /jwt/auth
    POST /token /oauth2/token /oauth2/exchange /api/v2.0/robots
openai: POST /v1/realtime/client_secrets /v1/realtime/sessions /v1/realtime/transcription_sessions
        /v1/realtime/translations/client_secrets /v1/realtime/calls /v1/chatkit/sessions
        /v1/organization/admin_api_keys /v1/organization/projects/p/service_accounts
        /v1/projects/p/service_accounts
openrouter: POST /api/v1/keys /api/v1/auth/keys
pagerduty: POST /oauth/token /oauth_delegations/revoke_requests
perplexity: POST /generate_auth_token
python-private: POST /_/oidc/mint-token
render: GET /v1/postgres/p/connection-info POST /v1/postgres/p/credentials /v1/registrycredentials
resend: POST /api-keys /oauth/token
sendgrid: POST /v3/api_keys /v3/subusers
sentry: POST /api/0/api-tokens/ /oauth/token/ /api/0/organizations/o/org-auth-tokens/
        /api/0/sentry-app-installations/i/authorizations/ /api/0/projects/o/p/keys/
slack: POST slack.com/api/oauth.v2.access slack.com/api/oauth.v2.exchange
        slack.com/api/openid.connect.token slack.com/api/tooling.tokens.rotate
        slack.com/api/apps.connections.open slack.com/api/rtm.connect
stripe: POST /v1/ephemeral_keys /v1/account_links /v1/accounts/a/login_links /v1/account_sessions
        /v1/customer_sessions /v1/billing_portal/sessions /v1/terminal/connection_tokens
        /v1/stripecli/sessions /oauth/token
supabase: GET /v1/projects/r/api-keys /v1/projects/r/config/auth/signing-keys
    POST /v1/projects/r/api-keys /v1/projects/r/cli/login-role /v1/oauth/token
        /v1/projects/r/claim-token
supabase-project: POST /auth/v1/token /auth/v1/admin/generate_link /auth/v1/admin/users
        /storage/v1/object/sign/b/x /storage/v1/object/upload/sign/b/x
tavily: POST /generate-keys /keys
together: POST /v1/projects/p/api_keys /api-keys
twilio: POST /2010-04-01/Accounts/A/Keys.json /2010-04-01/Accounts/A/Tokens.json
        /2010-04-01/Accounts.json /2010-04-01/Accounts/A/SigningKeys.json
    GET /2010-04-01/Accounts/A.json
vercel: POST /v3/user/tokens /v1/projects/p/token /v1/edge-config/e/token /v2/oauth/access_token
        /login/oauth/token /v1/integrations/sso/token /v1/storage/stores/s/secrets
    PATCH /v1/projects/p/protection-bypass
zai: POST /api/biz/apikey/create
xai: POST /v1/realtime/client_secrets /auth/teams/t/api-keys
""")
for _rows, _prefix, _names in (
    (GITHUB_API, "", "ghe-cloud"),
    (GITHUB_API, "api.github.com", "github"),
    (GITHUB_API, "/api/v3", "github-enterprise"),
    (GITEA, "", "codeberg forgejo gitea"),
    (CONSOLES, "", "cargo-private go-private maven-private npm-private nuget-private"),
    (CONSOLES, "", "oci-private python-private"),
    (GOOGLE, "", "google-cloud vertex vertex-service-account"),
):
    for _name in _names.split():
        MINTING[_name] += [(method, _prefix + path) for method, path in _rows]

MINTING |= {
    name: MINTING["mcp"] for name in NAMES if service(name).mcp and not service(name).needs_hosts
}

NONE_KNOWN = frozenset("brave-search cerebras deepseek groq replicate shortcut voyage".split())
"""Services whose hosts in the catalogue have no such endpoint; their keys are made in a console."""

HANDED_OUT = {"huggingface": [("GET", "huggingface.co/api/models/o/r/xet-read-token/main")]}
"""What the catalogue allows all the same, and says so in a note of its entry: a token that reads
one repository, without which no large file can be had."""

ROWS = [(name, *row) for name, rows in MINTING.items() for row in rows]


def test_every_service_of_the_catalogue_was_looked_at() -> None:
    assert set(MINTING) | NONE_KNOWN == set(NAMES)
    assert not set(MINTING) & NONE_KNOWN


@pytest.mark.parametrize(("name", "method", "target"), ROWS)
def test_what_hands_out_a_token_is_guarded(name: str, method: str, target: str) -> None:
    """I1: no broad `allow` opens it, and no entry of the catalogue does."""
    check_guarded(name, method, target)


@pytest.mark.parametrize("name", HANDED_OUT)
def test_what_is_handed_out_all_the_same_is_said(name: str) -> None:
    """The control: these are allowed, so a guard is something else than silence."""
    for method, target in HANDED_OUT[name]:
        host, path = entry(name, target)
        assert speaks(host.allow, method, path.folded())
        assert not guards(name, method, target)
