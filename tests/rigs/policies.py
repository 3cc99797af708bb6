"""Policies for tests: texts become Policies in a small, known world."""

from __future__ import annotations

from keyhole.inject.catalogue import ServiceTemplate, parse_template
from keyhole.inject.model_api import parse_model_api
from keyhole.policy.build import PolicyContext
from keyhole.policy.fault import PolicyFault, PolicyFaults
from keyhole.policy.load import LoadedPolicy, PolicyText, load
from keyhole.policy.rulebook import Rulebook

MODEL = """
title = "A model's API"
kind  = "llm"
sure  = "tested"
looked_at = "2026-07-01"
env   = ["MODEL_KEY"]
placeholder = "mk-{alnum:40}"
[[host]]
hosts  = ["api.model.example"]
usage  = ["openai"]
inject = { header = "x-api-key", value = "{secret}" }
strip  = ["header:x-model-org"]
allow  = ["POST /v1/messages", "GET /v1/models/**"]
deny   = ["* /v1/keys/**", "POST /v1/files/**", "PATCH /v1/**", "PATCH /v1/jobs/*/run"]
bodies = ["DELETE+body /v1/bulk/**", "DELETE+body /v1/keys/*"]
[[host]]
hosts  = ["cdn.model.example"]
allow  = ["GET /**"]
"""
TENANT = """
title = "A service where each user has a host"
kind  = "saas"
sure  = "unverified"
looked_at = "2026-07-01"
[[host]]
example = "YOURS.tenant.example"
inject  = { header = "Authorization", value = "Bearer {secret}" }
allow   = ["GET /**"]
"""
FORGE = """
title = "A forge"
kind  = "forge"
sure  = "documented"
looked_at = "2026-07-01"
forge = "github"
git_user = "token-user"
[[host]]
hosts    = ["git.example"]
inject   = { basic_user = "token-user" }
git      = true
[[host]]
hosts    = ["api.git.example"]
inject   = { header = "Authorization", value = "Bearer {secret}" }
api_read = ["GET /repos/{repo}/issues/**", "GET /rate_limit"]
api_write = ["POST /repos/{repo}/pulls"]
deny     = ["* /repos/*/*/keys/**"]
"""
NESTED = """
title = "A forge with nested groups"
kind  = "forge"
sure  = "documented"
looked_at = "2026-07-01"
forge = "gitlab"
[[host]]
hosts    = ["lab.example"]
inject   = { header = "PRIVATE-TOKEN", value = "{secret}" }
git      = true
encoded_slash = true
api_read = ["GET /api/v4/projects/{repo}/issues/**"]
"""
MCP = """
title = "A server of MCP"
kind  = "saas"
sure  = "documented"
looked_at = "2026-07-01"
[mcp]
[[host]]
hosts    = ["mcp.example"]
inject   = { header = "Authorization", value = "Bearer {secret}" }
returned = ["header:mcp-session-id"]
allow    = ["POST,GET,DELETE /**"]
deny     = ["* /token"]
"""

JUDGED = """
title = "A model's API, with bodies that are judged"
kind  = "llm"
sure  = "documented"
[[host]]
hosts  = ["api.thinker.example"]
inject = { header = "x-api-key", value = "{secret}" }
allow  = ["POST /v1/think", "POST /v1/draw"]
[host.judged]
thinking = ["POST /v1/think"]
"""
THINKING = """
title   = "Thinking"
model   = ["model"]
tokens  = ["max_tokens"]
members = ["model", "max_tokens"]
[[rule]]
at       = "tools[*].type"
kind     = "tool"
harmless = ["function"]
features = { web-search = ["web_search"] }
"""

OPERATED = """
title = "Queues and a store, whose operations method and path do not tell"
kind  = "saas"
sure  = "documented"
[[host]]
example = "queues.corp.example"
inject  = { header = "Authorization", value = "Bearer {secret}" }
allow   = ["* /**"]
[[host.operations]]
on       = ["* /", "* /service/**"]
named    = ["query:Action", "form:Action", "header:X-Amz-Target", "path:operation"]
required = true
open     = ["ListQueues"]
guarded  = ["*Secret*"]
media    = ["application/x-amz-json-1.0", "application/cbor"]
[[host.operations]]
on    = ["* /say"]
field = { own-token = ["token"] }
[[host.operations]]
on    = ["* /graphql"]
named = ["graphql:query", "header:X-Operation"]
[[host.operations]]
on     = ["* /store/**"]
query  = { acl = ["acl"], harmless = ["uploadId", "response-*"] }
[host.operations.header]
copy        = ["x-amz-copy-source*"]
form-upload = ["content-type=multipart/*"]
watched     = ["x-amz-*"]
harmless    = ["x-amz-meta-*"]
"""

TEXTS = {
    "model": MODEL,
    "tenant": TENANT,
    "forge": FORGE,
    "lab": NESTED,
    "server": MCP,
    "thinker": JUDGED,
    "queues": OPERATED,
}
APIS = {"thinking": parse_model_api("thinking", THINKING, {})}
CATALOGUE: dict[str, ServiceTemplate] = {
    name: parse_template(name, text, APIS) for name, text in TEXTS.items()
}

SUFFIXES = {"com", "co.uk", "pages.example"}


def covered_suffix(name: str) -> str | None:
    """A suffix list of three."""
    return next((s for s in SUFFIXES if s == name or s.endswith("." + name)), None)


WORLD = PolicyContext(CATALOGUE, covered_suffix, ("python", "node"))


def loaded(text: str, user: str | None = None) -> LoadedPolicy:
    """Load a policy; `version = 1` is put before it."""
    defaults = PolicyText("config.toml", user.encode()) if user is not None else None
    return load(PolicyText("keyhole.toml", b"version = 1\n" + text.encode()), defaults, WORLD)


def book(text: str) -> Rulebook:
    """The rulebook of a policy."""
    return Rulebook(loaded(text).policy)


def faults(text: str, user: str | None = None) -> tuple[PolicyFault, ...]:
    """The faults of a policy that has some."""
    try:
        loaded(text, user)
    except PolicyFaults as error:
        return error.faults
    raise AssertionError("the policy was expected to have a fault")


def messages(text: str, user: str | None = None) -> str:
    """All faults as a person sees them."""
    return "\n".join(fault.render() for fault in faults(text, user))
