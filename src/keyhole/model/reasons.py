"""One table of reasons: the verdict, HTTP and gRPC status, sentence and hint of every code.

Everything that puts a reason in words reads it: HTTP refusals, notices on the terminal, `keyhole
why`, git's `! [remote rejected]` and docs/reasons.md, which is generated from it.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.decision import Reason, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

FORBIDDEN = 403
NOT_FOUND = 404
BAD_GATEWAY = 502


class GrpcStatus(enum.IntEnum):
    """The codes of gRPC that a refusal has."""

    OK = 0
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


_EXHAUSTED, _INTERNAL = GrpcStatus.RESOURCE_EXHAUSTED, GrpcStatus.INTERNAL
_UNAVAILABLE, _UNAUTHENTICATED = GrpcStatus.UNAVAILABLE, GrpcStatus.UNAUTHENTICATED


class ReasonInfo(Struct, frozen=True):
    """The meaning of one code."""

    verdict: Verdict
    """The verdict in the audit log."""
    sentence: str
    """For a person and for the client. `{ref}` stands for the name of a branch or tag, `{path}` for
    that of a file."""
    hint: str = ""
    """What to do about it. `{host}`, `{port}` and `{pattern}` stand for the destination, `{limit}`
    for the limit that is reached."""
    status: int = FORBIDDEN
    """The status of the HTTP response, where there is one."""
    grpc: GrpcStatus = GrpcStatus.PERMISSION_DENIED
    """The status of a gRPC call."""
    failed: bool = False
    """Policy allowed it, and something else went wrong: the client reads "failed", not "denied"."""
    retry: bool = False
    """The same request may be answered otherwise a moment later."""
    ref: str = "the branch"
    """Stands in the sentence where no name is at hand."""

    def say(self, ref: str = "", path: str = "") -> str:
        """The sentence, with the names of the ref and file where it speaks of them."""
        return self.sentence.replace("{ref}", ref or self.ref).replace("{path}", path or "a file")

    def advise(self, host: str, port: int, pattern: str) -> str:
        """The hint for one destination."""
        file = "your config.toml" if host.startswith("gateway.") else "the policy"
        values = {
            "{host}": host,
            "{limit}": host,
            "{file}": file,
            "{port}": str(port),
            "{pattern}": pattern,
        }
        filled = self.hint
        for name, value in values.items():
            filled = filled.replace(name, value)
        return filled


def _allow(sentence: str) -> ReasonInfo:
    return ReasonInfo(Verdict.ALLOW, sentence, status=200, grpc=GrpcStatus.OK)


def _deny(
    sentence: str,
    hint: str = "",
    *,
    status: int = FORBIDDEN,
    grpc: GrpcStatus = GrpcStatus.PERMISSION_DENIED,
    retry: bool = False,
    ref: str = "the branch",
) -> ReasonInfo:
    return ReasonInfo(Verdict.DENY, sentence, hint, status, grpc, retry=retry, ref=ref)


def _fail(
    sentence: str,
    hint: str = "",
    *,
    status: int = BAD_GATEWAY,
    grpc: GrpcStatus = GrpcStatus.UNAVAILABLE,
    verdict: Verdict = Verdict.ALLOW,
) -> ReasonInfo:
    return ReasonInfo(verdict, sentence, hint, status, grpc, failed=True)


_EGRESS = "`keyhole why {pattern}` says what allows it"
"""A service or a preset may have the host, and only `why` has the time to look."""
_CONNECT = 'to allow it, add under [upstream.connect]: "{host}:{port}" = "ADDRESS:PORT"'
_RAISE = "raise {limit} in {file} if this is expected"
_AWS = "unset the client's AWS profile; AWS_REGION is the region that the policy names"

REASONS: Mapping[str, ReasonInfo] = {
    Reason.NO_RULE: _deny("no rule names it", _EGRESS),
    Reason.RULE: _allow("a rule names it"),
    # names and ports
    Reason.PORT_NOT_GRANTED: _deny("the name is allowed, but not at this port", _EGRESS),
    Reason.LITERAL_ADDRESS: _deny(
        "an address that no name was asked for",
        "hosts are reached by name: use the name, and allow that",
    ),
    Reason.PASSTHROUGH: _allow("a host of a service that `unsafe_passthrough` tunnels"),
    Reason.GRANTED: _allow("a person granted it at run time with `keyhole allow`"),
    Reason.GRANT_SPENT: _deny(
        "what was granted of it is used up", "`keyhole allow ID {pattern}` grants it again"
    ),
    Reason.LEARNING: _allow("no rule names it, and the run is a learning run"),
    Reason.PUBLISHED: _allow("a port of the sandbox that `sandbox.publish` names"),
    Reason.HOST_PORT: _allow("a port of this host that `sandbox.host_ports` names"),
    Reason.FOREIGN_NAME: _deny(
        "a published port was opened under another name than its own",
        "`keyhole ports` lists the addresses", status=421,
    ),
    Reason.OWN_PORT: _deny("the port of this host is Keyhole's own"),
    # asked of a person
    Reason.HELD: _deny("it waits for a person's answer"),
    Reason.APPROVED: _allow("a person allowed it when they were asked"),
    Reason.NOT_APPROVED: _deny("a person was asked, and said no"),
    Reason.UNANSWERED: _deny(
        "a person was asked, and did not answer in time",
        "`keyhole asks` lists it; after `keyhole approve`, a second try passes",
    ),
    Reason.TOO_MANY_ASKED: _deny(
        "no rule names it, and too many questions wait for an answer already",
        "`keyhole asks` lists them",
        status=429, grpc=_EXHAUSTED, retry=True,
    ),
    # DNS
    Reason.TYPE_NOT_ANSWERED: _deny("only A questions are answered"),
    Reason.CLASS_NOT_ANSWERED: _deny("only the Internet class exists"),
    Reason.NAME_MALFORMED: _deny("not a host's name"),
    # addresses
    Reason.PUBLIC_ADDRESS: _allow("the name resolved to a public address"),
    Reason.CONNECT_OVERRIDE: _allow("`[upstream.connect]` names the address to dial"),
    Reason.PRIVATE_GRANTED: _allow("a private address, and `upstream.private` names the host"),
    Reason.ADDRESS_PRIVATE: _deny(
        "it resolves to a private address",
        'to allow it, add under [upstream]: private = ["{host}"]',
    ),
    Reason.ADDRESS_LOOPBACK: _deny("it resolves to a loopback address", _CONNECT),
    Reason.ADDRESS_LINK_LOCAL: _deny("it resolves to a link-local address", _CONNECT),
    Reason.ADDRESS_MULTICAST: _deny("it resolves to a multicast address"),
    Reason.ADDRESS_METADATA: _deny("it resolves to a metadata address"),
    Reason.ADDRESS_EMBEDDED: _deny("it resolves to an IPv6 address that stands for an IPv4 one"),
    Reason.ADDRESS_RESERVED: _deny("it resolves to a reserved address", _CONNECT),
    # the network's fault, not a decision
    Reason.NAME_UNRESOLVED: _fail("the name does not resolve"),
    Reason.UPSTREAM_UNREACHABLE: _fail("it cannot be reached"),
    Reason.PROXY_FAILED: _fail("the proxy refused or cannot be reached", "see upstream.proxy"),
    # requests
    Reason.METHOD_REFUSED: _deny("this method is never allowed"),
    Reason.METHOD_OVERRIDE: _deny(
        "a header or the query names another method than the request has",
        "let the client send the method that it means",
    ),
    Reason.BODY_NOT_GRANTED: _deny(
        "the request is allowed, but not with a body, which HTTP does not define for its method",
        'a rule such as "GET+body /path" allows it',
    ),
    Reason.WEBSOCKET_NOT_GRANTED: _deny(
        "a request is allowed there, but a WebSocket is a grant of its own",
        'a rule such as "WEBSOCKET /path" allows it'
    ),
    Reason.PATH_MALFORMED: _deny(
        "the path can be read in more than one way",
        "for %2F in names there is encoded_slash = true",
    ),
    Reason.QUERY_MALFORMED: _deny("the query has characters that must be encoded"),
    Reason.DNS_OVER_HTTPS: _deny(
        "DNS over HTTPS would resolve names past the gateway", "switch it off in the client"
    ),
    Reason.DENIED_BY_RULE: _deny("a deny rule names it"),
    Reason.GUARDED_ENDPOINT: _deny(
        "the endpoint is guarded: it could hand out credentials or move data elsewhere",
        "a rule of `allow` or `allow_also` that names it opens it",
    ),
    Reason.GRAPHQL: _deny(
        "GraphQL is closed, or the document asks for something that is",
        "the answer names it; `api` opens more (docs/github.md)",
    ),
    Reason.GRAPHQL_CLOSED: _deny(
        "this forge's GraphQL is closed at every level of `api`; use its REST API"
    ),
    Reason.MERGE_BY_REST: _deny(
        "a merge by REST does not name its branches, so `push` and `protect` cannot be applied; "
        'use `gh pr merge`, under api = "merge"'
    ),
    # bodies
    Reason.BODY_UNJUDGED: _deny("the body must be judged and cannot be read"),
    Reason.FEATURE_CLOSED: _deny("the body asks for something that the policy leaves closed"),
    Reason.MODEL_NOT_GRANTED: _deny("the policy does not name this model"),
    Reason.OPERATION_CLOSED: _deny(
        "the request asks for an operation that the policy leaves closed",
        "the answer names it; add it to `operations` of the service",
    ),
    Reason.OPERATION_UNCLEAR: _deny(
        "servers may read different operations in the request, or none",
        "name the operation once, in the plain form that SDKs use",
    ),
    # MCP
    Reason.MCP_CLOSED: _deny("the policy does not open this part of MCP"),
    Reason.MCP_MALFORMED: _deny("the message is not one of MCP that has one meaning"),
    Reason.MCP_SESSION: _deny(
        "this session of the MCP server belongs to no client of this sandbox", status=NOT_FOUND
    ),
    Reason.TOOL_NOT_GRANTED: _deny(
        "the policy does not grant this tool", "add its name to `tools` of the service"
    ),
    Reason.ARGUMENT_NOT_GRANTED: _deny(
        "the policy does not grant the tool with this argument",
        "`where` of its entry in `tools` says which values pass",
    ),
    Reason.RESOURCE_NOT_GRANTED: _deny(
        "the policy does not grant this resource", "add it to `resources` of the service"
    ),
    Reason.PROMPT_NOT_GRANTED: _deny(
        "the policy does not grant this prompt", "add it to `prompts` of the service"
    ),
    Reason.TOOL_SEEN: _allow("a tool was seen for the first time, and is accepted as it is"),
    Reason.TOOL_DIFFERS: _allow("a tool is new, or its description has changed"),
    Reason.TOOL_CHANGED: _deny(
        "the tool is not as it was when it was accepted, and the policy pins it",
        "`keyhole tools` shows it, `keyhole tools accept SERVICE` accepts it",
    ),
    # git
    Reason.REPOSITORY_NOT_GRANTED: _deny(
        "the repository is not granted, so it does not exist",
        status=NOT_FOUND,
        grpc=GrpcStatus.NOT_FOUND,
    ),
    Reason.ENDPOINT_REFUSED: _deny(
        "not one of git's smart HTTP requests", "neither WebDAV nor `git archive --remote` is open"
    ),
    Reason.READ_ONLY: _deny(
        "the repository is granted for reading alone",
        "the service's push is empty; uploads and locks of large files need it, too",
    ),
    Reason.REF_MALFORMED: _deny("not a plain branch or tag name"),
    Reason.REF_NAMESPACE: _deny("only branches and tags can be pushed"),
    Reason.REF_NOT_GRANTED: _deny("push to {ref} is not allowed"),
    Reason.REF_PROTECTED: _deny("{ref} is protected"),
    Reason.REF_SYMBOLIC: _deny("{ref} stands for another branch on the server"),
    Reason.REF_MOVED: _deny("{ref} is not there, or has moved", "fetch first"),
    Reason.DEFAULT_BRANCH_UNKNOWN: _deny("the remote's default branch could not be learnt"),
    Reason.CREATE_NOT_GRANTED: _deny("creating {ref} is not allowed"),
    Reason.FORCE_NOT_GRANTED: _deny(
        "rewriting {ref} is not allowed, nor is breaking another's lock",
        "force = true in the service's policy grants it",
    ),
    Reason.DELETE_NOT_GRANTED: _deny("deleting {ref} is not allowed"),
    Reason.TAG_NOT_GRANTED: _deny("no tag pattern covers {ref}", ref="the tag"),
    Reason.TAG_MOVE: _deny("a tag is never moved or deleted"),
    Reason.ANCESTRY_UNKNOWN: _deny("it cannot be shown that {ref} only moves forward"),
    Reason.DENIED_PATH: _deny("{ref} would change {path}, which deny_paths protects"),
    Reason.PUSH_MALFORMED: _deny("the push is malformed", status=400, grpc=_INTERNAL),
    Reason.PUSH_OPTION: _deny(
        "this push option is not allowed", "push_options names those that are"
    ),
    Reason.PUSH_UNJUDGED: _deny("the push could not be judged"),
    Reason.HELD_BACK: _deny("another ref of the same push was refused"),
    Reason.UPSTREAM_REFUSED: _allow("policy allowed the ref, and the origin refused it"),
    Reason.FETCH_REFUSED: _deny("the fetch is malformed, or asks for what is never allowed"),
    Reason.LFS_REFUSED: _deny("the request for large files is malformed, or not granted"),
    # limits
    Reason.WITHIN_LIMIT: _allow("the limit is not reached"),
    Reason.OVER_LIMIT: _deny("over the limit", _RAISE, status=429, grpc=_EXHAUSTED, retry=True),
    Reason.OVER_BUDGET: _deny("the budget is used up", _RAISE, grpc=_EXHAUSTED),
    Reason.SPENDING_UNKNOWN: _deny(
        "the account of what was spent cannot be read or written",
        "`keyhole doctor` says what is wrong with its directory", grpc=_EXHAUSTED,
    ),
    Reason.USED: _allow("tokens were used"),
    Reason.OVER_SHARE: _deny(
        "the session has its whole share of what sessions share", "try again",
        status=429, grpc=_EXHAUSTED, retry=True,
    ),
    # the client's TLS
    Reason.SNI_MISMATCH: _deny("TLS asks for another name than DNS did"),
    Reason.SNI_MISSING: _deny("TLS names no host", "give the client a name, not an address"),
    Reason.ECH: _deny(
        "the TLS hello is encrypted, so its name cannot be checked", "switch ECH off in the client"
    ),
    Reason.NOT_TLS: _deny("not TLS", "grant the server's own port, if it has one"),
    Reason.HELLO_MALFORMED: _deny("the TLS hello is malformed"),
    Reason.HTTP_VERSION: _deny(
        "the client does not speak the version of HTTP that the service's `http` names",
        "let the client speak it, or remove `http` from the service",
    ),
    Reason.CLIENT_DISTRUSTS: _fail(
        "the client does not trust this session's CA",
        "point it at /etc/keyhole/bundle.pem (SSL_CERT_FILE, REQUESTS_CA_BUNDLE, "
        "NODE_EXTRA_CA_CERTS and the like are set), or name the host in the service's "
        "unsafe_passthrough, which disables the credential",
    ),
    Reason.CLIENT_TLS: _fail("TLS with the client failed"),
    # the client
    Reason.CLIENT_LEFT: _deny("the client closed before it had said enough to be judged"),
    Reason.CLIENT_SILENT: _deny("the client did not send its hello or request in time"),
    Reason.CLIENT_SLOW: ReasonInfo(
        Verdict.ALLOW, "the client sends or reads too slowly", grpc=_UNAVAILABLE
    ),
    Reason.HTTP_MALFORMED: _deny("the HTTP request is malformed", status=400, grpc=_INTERNAL),
    Reason.HTTP_UPGRADE: _deny("HTTP would become another protocol"),
    Reason.HOST_MISMATCH: _deny("HTTP asks for another host than DNS did"),
    Reason.BODY_TOO_LARGE: _deny(
        "the body is over limits.body",
        "raise it; AWS clients that declare no hash have 32 MiB", status=413, grpc=_EXHAUSTED,
    ),
    Reason.DNS_MALFORMED: _deny("not one readable DNS question"),
    Reason.DECOY_USED: _deny(
        "the placeholder of another service, or the made-up key of a canary file, was sent to this "
        "host"
    ),
    Reason.COMMIT_SIGNED: _allow("a commit of the person was signed with the key of sandbox.sign"),
    Reason.COMMIT_UNSIGNED: _deny("something was not signed with the key of sandbox.sign"),
    Reason.CREDENTIAL_IN_THE_CLEAR: _deny("a credential, or a field that redirects, in plain HTTP"),
    Reason.SIGNATURE_MISSING: _deny("the AWS signature is missing"),
    Reason.SIGNATURE_FORM: _deny("the AWS signature is not in a form that can be checked"),
    Reason.SIGNATURE_KEY: _deny("the AWS signature is not by this sandbox's placeholder key", _AWS),
    Reason.SIGNATURE_SCOPE: _deny("the AWS signature is for another service or region", _AWS),
    Reason.SIGNATURE_HEADERS: _deny("the AWS signature does not cover the headers that it must"),
    Reason.SIGNATURE_DATE: _deny("the AWS signature is of another time"),
    Reason.SIGNATURE_PAYLOAD: _deny(
        "the AWS signature covers the body in a way that cannot be signed again",
        "have the client send the body unsigned",
    ),
    Reason.SIGNATURE_WRONG: _deny("the AWS signature is wrong", _AWS),
    # the session and its door
    Reason.INSPECTION_OFF: _deny(
        "it belongs to a service, and nothing is inspected in this session"
    ),
    Reason.NOT_ADMITTING: _deny(
        "nothing is admitted while the audit log cannot be written", "is the disk full?",
        status=503, grpc=_UNAVAILABLE, retry=True,
    ),
    Reason.FOREIGN_NAMESPACE: _deny("a connection that is not of the door's own namespace"),
    Reason.DOOR_CLOSED: _deny("the door was closed"),
    Reason.FROZEN: _deny(
        "the session is frozen, because a placeholder was sent to a host that is not its own",
        "look at `keyhole log --session ID`; `keyhole resume ID` opens the session again",
    ),
    Reason.POLICY_CHANGED: _deny("the session's policy has changed, and no longer allows it"),
    Reason.GRANT_EXPIRED: _deny("the time of the grant that let the connection in is over"),
    Reason.IDLE: _deny("nothing was sent either way for too long"),
    Reason.TABLE_FULL: _deny("the session has asked for too many names"),
    # the origin
    Reason.UPSTREAM_TLS: _fail("TLS with the origin failed"),
    Reason.UPSTREAM_CERTIFICATE: _fail(
        "the origin's certificate is not accepted", "for a private CA there is upstream.ca_file"
    ),
    Reason.UPSTREAM_MALFORMED: _fail("the origin's response is malformed", grpc=_INTERNAL),
    Reason.UPSTREAM_CLOSED: _fail("the origin closed the connection before it responded"),
    Reason.UPSTREAM_SLOW: _fail("the origin takes the body too slowly"),
    Reason.ENCODING_REFUSED: _fail(
        "the response is encoded so that it cannot be scanned for the secret",
        "if the host needs no credential, take it out of the service", grpc=_INTERNAL,
    ),
    Reason.SECRET_SCRUBBED: _allow("the response held the secret, which was replaced"),
    Reason.SECRET_REFLECTED: _fail(
        "the response holds the secret where it cannot be replaced", grpc=_INTERNAL,
        verdict=Verdict.DENY,
    ),
    Reason.CREDENTIAL_REFUSED: _fail(
        "the origin does not accept the credential", "it may have expired: `keyhole secret test`",
        status=FORBIDDEN, grpc=_UNAUTHENTICATED,
    ),
    # this host
    Reason.CREDENTIAL_UNAVAILABLE: _fail(
        "the credential cannot be had", grpc=_UNAUTHENTICATED, verdict=Verdict.DENY
    ),
    Reason.DISK_FULL: _fail(
        "this host has no room for the push",
        "pushes wait in quarantine/ of the state directory, and 256 MiB stay free", status=507,
        grpc=_EXHAUSTED,
    ),
    Reason.INTERNAL: _fail("an error in the gateway", status=500, grpc=_INTERNAL),
}  # fmt: skip
"""Every code of `Reason`; a test holds that none is missing."""

_UNKNOWN = ReasonInfo(Verdict.DENY, "")


def info_of(reason: str) -> ReasonInfo:
    """The entry of a code; a code that is not in the table is a denial without words."""
    return REASONS.get(reason, _UNKNOWN)


def sentence_of(reason: str, ref: str = "", path: str = "") -> str:
    """The reason in words; the code itself where the table has none."""
    return info_of(reason).say(ref, path) or str(reason)
