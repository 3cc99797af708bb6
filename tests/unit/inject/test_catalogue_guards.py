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
from tests.rigs.inject.shelf import by_service, granted, service

if TYPE_CHECKING:
    from keyhole.inject.catalogue import HostTemplate

# A path that begins with a host is of that host. What hands out a token is in
# test_catalogue_minting.py, and is held in the same way.
GUARDED = by_service("""
anthropic: GET /v1/organizations/api_keys /v1/organizations/users /v1/files/f/content
    POST /v1/organizations/api_keys/ /v1/files /v1/skills /v1/messages/batches
claude: POST /v1/files
openai: GET /v1/organization/projects/p/api_keys
    POST /v1/files /v1/uploads /v1/vector_stores /v1/containers /v1/batches /v1/fine_tuning/jobs
        /v1/skills /v1/conversations
codex: POST /backend-api/share/create GET /backend-api/connectors/list /backend-api/accounts/check
codex-pat: POST auth.openai.com/oauth/revoke
azure-openai: POST /openai/files /openai/v1/files /openai/fine_tuning/jobs
        /openai/deployments/d/extensions/chat/completions
gemini: POST /upload/v1beta/files /v1beta/files /v1beta/cachedContents /v1beta/tunedModels /batch
        /google.ai.generativelanguage.v1beta.FileService/CreateFile
    GET /v1beta/files/f
gemini-code-assist: POST oauth2.googleapis.com/revoke www.googleapis.com/upload/drive/v3/files
    GET www.googleapis.com/drive/v3/files
vertex: POST /v1/projects/p/locations/l/customJobs
        /google.cloud.aiplatform.v1.JobService/CreateCustomJob
        /google.cloud.aiplatform.v1beta1.ReasoningEngineExecutionService/QueryReasoningEngine
        /google.cloud.aiplatform.v1.ModelGardenService/Deploy
vertex-service-account: POST /google.cloud.aiplatform.v1.PredictionService/Predict
        /google.cloud.aiplatform.v1.PredictionService/StreamRawPredict
        /google.cloud.aiplatform.v1.GenAiCacheService/CreateCachedContent
google-cloud: PUT /v1/projects/p/subscriptions/s
    POST /v1/projects/p/subscriptions/s:modifyPushConfig /v1/projects/p/topics/t:setIamPolicy
        /google.pubsub.v1.Subscriber/CreateSubscription /google.pubsub.v1.Publisher/DeleteTopic
        storage.googleapis.com/upload/storage/v1/b/x/o storage.googleapis.com/storage/v1/b
        storage.googleapis.com/google.storage.v2.Storage/StartResumableWrite
        storage.googleapis.com/google.storage.v2.Storage/SetIamPolicy
        firestore.googleapis.com/v1/projects/p/databases/d:exportDocuments
        firestore.googleapis.com/google.firestore.admin.v1.FirestoreAdmin/ExportDocuments
        bigquery.googleapis.com/bigquery/v2/projects/p/queries
        bigquerystorage.googleapis.com/google.cloud.bigquery.storage.v1.BigQueryWrite/AppendRows
cursor: POST /aiserver.v1.BackgroundComposerService/StartBackgroundComposerFromSnapshot
        /aiserver.v1.RepositoryService/FastUpdateFileV2
kimi: POST /v1/files
dashscope: POST /api/v1/files /compatible-mode/v1/batches
zai: POST /api/paas/v4/files GET /api/biz/subscription/list
minimax: POST /v1/files/upload
amp: POST /api/internal GET /api/v2/threads
factory: POST /api/v0/sessions
augment: POST /batch-upload
aws-s3: PUT / DELETE /
bedrock: POST /async-invoke /model-invocation-job
bedrock-key: POST /async-invoke /v1/files
openrouter: GET /api/v1/keys /api/v1/credits
mistral: POST /v1/files /v1/fine_tuning/jobs /v1/agents
groq: POST /openai/v1/files /openai/v1/batches
xai: POST /v1/api-key /xai_api.Files/UploadFile /xai_api.BatchMgmt/CreateBatch
        /collections.Collections/CreateCollection
tavily: POST /extract /crawl
huggingface: POST huggingface.co/api/repos/create huggingface.co/api/models/o/r/commit/main
        huggingface.co/o/r.git/git-receive-pack huggingface.co/o/r.git/info/lfs/objects/batch
        huggingface.co/api/spaces/o/r/secrets cas-server.xethub.hf.co/v1/shards
    GET huggingface.co/api/settings/webhooks
github: POST api.github.com/graphql api.github.com/user/gpg_keys api.github.com/user/repos
        api.github.com/repos/o/r/hooks api.github.com/repos/o/r/git/refs
        api.github.com/repos/o/r/merges api.github.com/repos/o/r/merge-upstream
        api.github.com/repos/o/r/pulls/1/reviews api.github.com/repos/o/r/branches/b/rename
        api.github.com/repos/o/r/rulesets api.github.com/repos/o/r/releases
        api.github.com/repos/o/r/generate api.github.com/repos/o/r/forks
        api.github.com/repos/o/r/transfer api.github.com/repos/o/r/dispatches
        api.github.com/repos/o/r/actions/workflows/ci.yml/dispatches api.github.com/repos/o/r/pages
        api.github.com/gists
    GET api.github.com/user/repos api.github.com/repos/o/r/actions/secrets/public-key
        api.github.com/repos/o/r/actions/variables api.github.com/orgs/o/actions/secrets
        api.github.com/repositories/1/actions/secrets
    PUT api.github.com/repos/o/r/actions/secrets/S api.github.com/repos/o/r/environments/e
        api.github.com/repos/o/r/collaborators/ann api.github.com/repos/o/r/contents/x
        api.github.com/repos/o/r/pulls/1/merge api.github.com/repos/o/r/pulls/1/update-branch
        api.github.com/repos/o/r/branches/main/protection objects.githubusercontent.com/x
        github-cloud.s3.amazonaws.com/x
    DELETE api.github.com/repos/o/r/contents/x api.github.com/repos/o/r/git/refs/heads/main
        api.github.com/repos/o/r
    PATCH api.github.com/repos/o/r/git/refs/heads/main api.github.com/repos/o/r
gitlab: POST /api/graphql /api/v4/projects/acme%2Fwidgets/access_tokens
        /api/v4/projects/1/deploy_keys /api/v4/projects/1/hooks /api/v4/projects/import
        /api/v4/import/github /api/v4/bulk_imports /api/v4/user/keys /api/v4/projects/1/fork
        /api/v4/projects /api/v4/projects/1/repository/commits /api/v4/projects/1/members
        /api/v4/projects/1/protected_branches
    GET /api/v4/projects/1/variables /api/v4/projects/acme%2Fwidgets/variables
        /api/v4/groups/1/variables /api/v4/projects/1/pipelines/2/variables
        /api/v4/projects/1/runners
    PUT /api/v4/projects/1
gitea: POST /api/v1/user/keys /api/v1/repos/o/r/keys /api/v1/repos/o/r/hooks /api/v1/repos/migrate
        /api/v1/user/repos /api/v1/repos/o/r/pulls/1/merge
    PUT /api/v1/repos/o/r/contents/x
bitbucket: GET api.bitbucket.org/2.0/repositories/o/r/pipelines_config/variables
    POST api.bitbucket.org/2.0/repositories/o/r/hooks
        api.bitbucket.org/2.0/repositories/o/r/pipelines api.bitbucket.org/2.0/repositories/o/r/src
        api.bitbucket.org/2.0/repositories/o/r/pullrequests/1/merge api.bitbucket.org/2.0/snippets
    DELETE api.bitbucket.org/2.0/repositories/o/r
azure-devops: POST /org/_apis/tokens/pats /org/project/_apis/pipelines/1/runs
        /org/project/_apis/git/repositories/r/pushes /org/_apis/hooks/subscriptions
    GET /org/project/_apis/distributedtask/variablegroups
        /org/project/_apis/serviceendpoint/endpoints
slack: POST slack.com/api/auth.revoke slack.com/api/admin.users.invite
        slack.com/api/files.getUploadURLExternal
notion: POST /v1/file_uploads
atlassian: POST /rest/api/3/webhook /gateway/api/graphql DELETE /rest/api/3/issue/X-1
sentry: GET /api/0/projects/o/p/keys/ POST /api/0/organizations/o/chunk-upload/ /api/1/envelope/
stripe: POST /v1/webhook_endpoints /v1/refunds /v1/payouts /v1/transfers /v1/files
supabase: GET /v1/projects/ref/api-keys /v1/projects/ref/secrets /v1/projects/ref/config/auth
    POST /v1/projects/ref/secrets /v1/projects/ref/database/query /v1/projects/ref/functions/deploy
vercel: GET /v9/projects/p/env /v1/projects/p/env/e POST /v13/deployments /v10/projects/p/env
cloudflare: GET /client/v4/user/tokens
    POST /client/v4/zones/z/dns_records
    PUT /client/v4/accounts/a/workers/scripts/s /client/v4/accounts/a/workers/scripts/s/secrets
fly: POST /v1/apps/a/machines/m/exec /v1/apps/a/machines GET /v1/apps/a/secrets
datadog: GET /api/v2/api_keys POST /api/v2/application_keys
npm-private: PUT /widgets /@acme%2fwidgets /-/package/widgets/dist-tags/latest
    GET /-/npm/v1/tokens
    POST /-/npm/v1/oidc/token/exchange/package/widgets
oci-private: POST /v2/acme/widgets/blobs/uploads/
    PUT /v2/acme/widgets/manifests/latest
    DELETE /v2/acme/widgets/manifests/latest
python-private: POST /legacy/
cargo-private: PUT /api/v1/crates/new DELETE /api/v1/crates/c/1.0/yank
nuget-private: PUT /api/v2/package DELETE /api/v2/package/p/1.0
maven-private: PUT /releases/a/b/1.0/b.jar
""")

# What each is for: allowed by the file itself, and so the control of the rows above.
OPEN = by_service("""
anthropic: POST /v1/messages GET /v1/models /api/web/domain_info
claude: POST /v1/messages GET /api/oauth/profile /api/web/domain_info
openai: POST /v1/responses /v1/chat/completions GET /v1/models
codex: POST /backend-api/codex/responses GET /backend-api/wham/accounts/check
github-copilot: POST /chat/completions GET api.github.com/copilot_internal/user
codex-pat: POST chatgpt.com/backend-api/codex/responses
azure-openai: POST /openai/deployments/d/chat/completions
gemini: POST /v1beta/models/m:generateContent
gemini-code-assist: GET oauth2.googleapis.com/tokeninfo
vertex: POST /v1/projects/p/locations/l/publishers/g/models/m:generateContent
        /google.cloud.aiplatform.v1beta1.PredictionService/GenerateContent
        /google.cloud.aiplatform.v1.ModelGardenService/GetPublisherModel
vertex-service-account: POST /v1/projects/p/locations/l/publishers/g/models/m:generateContent
aws-s3: GET / /a/b.txt HEAD /a/b.txt
bedrock: POST /model/m/invoke /model/m/invoke-with-bidirectional-stream
        /model/arn:aws:x%2Fy/converse
bedrock-key: POST /model/m/converse-stream
openrouter: POST /api/v1/chat/completions GET /api/v1/key
mistral: POST /v1/chat/completions
perplexity: POST /chat/completions
groq: POST /openai/v1/chat/completions
xai: POST /v1/chat/completions /xai_api.Auth/get_api_key_info GET /v1/api-key
google-cloud: POST /google.pubsub.v1.Publisher/Publish /google.pubsub.v1.Subscriber/StreamingPull
        /v1/projects/p/topics/t:publish storage.googleapis.com/google.storage.v2.Storage/ReadObject
        firestore.googleapis.com/google.firestore.v1.Firestore/Listen
        bigquerystorage.googleapis.com/google.cloud.bigquery.storage.v1.BigQueryRead/ReadRows
    GET storage.googleapis.com/storage/v1/b/x/o/a%2Fb
        bigquery.googleapis.com/bigquery/v2/projects/p/datasets/d/tables/t/data
cursor: POST /agent.v1.AgentService/Run /aiserver.v1.BidiService/BidiAppend
kimi: POST /coding/v1/chat/completions
dashscope: POST /compatible-mode/v1/chat/completions
zai: POST /api/anthropic/v1/messages
minimax: POST /anthropic/v1/messages
amp: POST /api/provider/anthropic/v1/messages
factory: POST /api/llm/a/v1/messages
augment: POST /chat-stream
tavily: POST /search
huggingface: GET huggingface.co/api/models/o/r huggingface.co/o/r/resolve/main/config.json
        huggingface.co/api/models/o/r/xet-read-token/main
github: GET api.github.com/repos/acme/widgets api.github.com/repos/acme/widgets/contents/src/x
        api.github.com/repos/acme/widgets/pulls/1
gitlab: GET /api/v4/projects/acme%2Fwidgets/issues
gitea: GET /api/v1/repos/acme/widgets/contents/x
bitbucket: GET api.bitbucket.org/2.0/repositories/acme/widgets/src/main/x
slack: GET slack.com/api/conversations.list
notion: POST /v1/search /v1/databases/d/query
atlassian: POST /rest/api/3/search/jql GET /rest/api/3/issue/X-1
sentry: GET /api/0/organizations/o/issues/
stripe: GET /v1/customers /v1/refunds
supabase: GET /v1/projects
vercel: GET /v6/deployments
cloudflare: GET /client/v4/zones /client/v4/zones/z/dns_records
fly: GET /v1/apps/a/machines
datadog: GET /api/v1/monitor POST /api/v2/logs/events/search
npm-private: GET /widgets /@acme%2fwidgets POST /-/npm/v1/security/audits
oci-private: GET /v2/acme/widgets/manifests/latest
python-private: GET /simple/widgets/
cargo-private: GET /index/config.json
nuget-private: GET /v3/index.json
maven-private: GET /releases/a/b/1.0/b.jar
""")


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


def check_guarded(name: str, method: str, target: str) -> None:
    """A guard speaks, in any case of the path's letters, and no broad rule covers it."""
    host_name, _, path = target.partition("/")
    assert guards(name, method, target)
    assert guards(name, method, f"{host_name}/{path.upper()}")
    for broad in ("* /**", "GET,POST,PUT,PATCH,DELETE /**"):
        rule = AccessRule.parse(broad)
        assert not any(guard.covers(rule) for guard in entry(name, target)[0].deny)


@pytest.mark.parametrize(("name", "method", "target"), ROWS)
def test_a_dangerous_endpoint_is_guarded_and_a_broad_allow_does_not_open_it(
    name: str, method: str, target: str
) -> None:
    """I3: the policy's `* /**` is no name of the endpoint, so the guard still speaks. I4: some
    servers do not look at the case of letters."""
    check_guarded(name, method, target)


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


def test_every_guarded_service_has_its_control() -> None:
    assert set(OPEN) >= set(GUARDED) - {"azure-devops"}  # whose rules are opened by hand
