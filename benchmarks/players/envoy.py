"""Envoy with the duties of a gateway: TLS both ways, rules, removals, an addition, a rate, a log.

Its listener is opened in the client's namespace, where TPROXY feeds it as it feeds a door; it dials
the origin from the host's. That takes root: it changes namespaces there and back.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.players import duties
from benchmarks.players.program import MISSING, PEERS, Program
from keyhole.sandbox.empty_network import CAPTURE_PORT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TYPES = "type.googleapis.com/envoy."
_HTTP = "extensions.filters.http"
_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_HTTP1, _BOTH = ["http/1.1"], ["h2", "http/1.1"]
_PLENTY = 100_000_000
"""Out of the way: what is measured is that the bucket is asked, not that it is empty."""


def program() -> Path | None:
    """Where the wheel has its program, if it is installed."""
    return next(PEERS.glob("lib/python3*/site-packages/envoy/_bin/envoy"), None)


def missing() -> str | None:
    """Why it cannot be measured, if so."""
    if program() is None:
        return MISSING.format("envoy")
    if os.geteuid() != 0:
        return "envoy is measured by root alone: it has to listen in another namespace"
    return None


def captured(client: int) -> dict[str, Any]:
    """A listener in the namespace of that process, for what TPROXY hands over there."""
    where = {
        "address": "0.0.0.0",  # noqa: S104 - in a namespace that has only lo
        "port_value": CAPTURE_PORT,
        "network_namespace_filepath": f"/proc/{client}/ns/net",
    }
    return {"transparent": True, "address": {"socket_address": where}}


def bound(address: str, port: int) -> dict[str, Any]:
    """A listener on an address of the host."""
    return {"address": {"socket_address": {"address": address, "port_value": port}}}


@contextmanager
def running(
    directory: Path,
    where: dict[str, Any],
    upstream: int,
    authority: Path,
    core: int,
    *,
    http2: bool = False,
) -> Iterator[Program]:
    """One thread's Envoy that listens there; `directory` has its leaf. With `http2`, it speaks
    that on each side where the other offers it."""
    config = directory / "envoy.json"
    origin = _origin(upstream, authority, _BOTH if http2 else _HTTP1)
    config.write_text(json.dumps(_bootstrap(directory, where, origin, http2=http2)))
    words = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "info"]
    command = [str(program()), "-c", str(config), *words]
    with Program(command, core, str(directory)) as proxy:
        proxy.wait_until_it_says("starting main dispatch loop")
        yield proxy


def _bootstrap(
    directory: Path, where: dict[str, Any], origin: dict[str, Any], *, http2: bool
) -> dict[str, Any]:
    listener = {
        "name": "door",
        **where,
        "listener_filters": [
            _extension("tls_inspector", "extensions.filters.listener.tls_inspector.v3.TlsInspector")
        ],
        "filter_chains": [
            {
                "filter_chain_match": {"server_names": [duties.HOST]},
                "transport_socket": _downstream_tls(directory, _BOTH if http2 else _HTTP1),
                "filters": [
                    _extension(
                        "hcm",
                        "extensions.filters.network.http_connection_manager.v3"
                        ".HttpConnectionManager",
                        **_http(directory, "AUTO" if http2 else "HTTP1"),
                    )
                ],
            }
        ],
    }
    return {"static_resources": {"listeners": [listener], "clusters": [origin]}}


def _http(directory: Path, codec: str) -> dict[str, Any]:
    return {
        "stat_prefix": "door",
        "codec_type": codec,
        "generate_request_id": False,
        "server_header_transformation": "PASS_THROUGH",
        "normalize_path": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "stream_idle_timeout": "900s",
        "access_log": [_access_log(directory)],
        "http_filters": [
            _extension("rbac", f"{_HTTP}.rbac.v3.RBAC", rules=_rules()),
            _extension(
                "rate",
                f"{_HTTP}.local_ratelimit.v3.LocalRateLimit",
                stat_prefix="rate",
                token_bucket={
                    "max_tokens": _PLENTY,
                    "tokens_per_fill": _PLENTY,
                    "fill_interval": "1s",
                },
                filter_enabled=_always(),
                filter_enforced=_always(),
            ),
            _extension("router", f"{_HTTP}.router.v3.Router", suppress_envoy_headers=True),
        ],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "api",
                    "domains": [duties.HOST],
                    "request_headers_to_remove": [
                        name for name in duties.REMOVED if name != duties.ADDED[0]
                    ],
                    "request_headers_to_add": [
                        {
                            "header": dict(zip(("key", "value"), duties.ADDED, strict=True)),
                            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                        }
                    ],
                    "routes": [
                        {
                            "match": {"prefix": "/"},
                            "route": {"cluster": "origin", "timeout": "0s"},
                        }
                    ],
                }
            ]
        },
    }


def _rules() -> dict[str, Any]:
    """The same twenty rules that the gateway's policy has."""
    methods = [
        {"header": {"name": ":method", "string_match": {"exact": method}}}
        for method in duties.METHODS
    ]
    return {
        "action": "ALLOW",
        "policies": {
            f"allow-{number:02}": {
                "permissions": [
                    {
                        "and_rules": {
                            "rules": [
                                {"or_rules": {"rules": methods}},
                                {"url_path": {"path": {"prefix": f"/v1/{resource}/"}}},
                            ]
                        }
                    }
                ],
                "principals": [{"any": True}],
            }
            for number, resource in enumerate(duties.RESOURCES)
        },
    }


def _access_log(directory: Path) -> dict[str, Any]:
    fields = {
        "time": "%START_TIME%",
        "host": "%REQ(:AUTHORITY)%",
        "method": "%REQ(:METHOD)%",
        "path": "%REQ(:PATH)%",
        "status": "%RESPONSE_CODE%",
        "up": "%BYTES_RECEIVED%",
        "down": "%BYTES_SENT%",
        "took": "%DURATION%",
        "flags": "%RESPONSE_FLAGS%",
        "origin": "%UPSTREAM_HOST%",
    }
    return _extension(
        "log",
        "extensions.access_loggers.file.v3.FileAccessLog",
        path=str(directory / "access.json"),
        log_format={"json_format": fields},
    )


def _downstream_tls(directory: Path, protocols: list[str]) -> dict[str, Any]:
    leaf = {"filename": str(directory / "leaf.pem")}
    return _extension(
        "tls",
        "extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        common_tls_context={
            "alpn_protocols": protocols,
            "tls_certificates": [{"certificate_chain": leaf, "private_key": leaf}],
        },
    )


def _origin(port: int, authority: Path, protocols: list[str]) -> dict[str, Any]:
    endpoint = {
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
    }
    tls = _extension(
        "tls",
        "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        sni=duties.HOST,
        common_tls_context={
            "alpn_protocols": protocols,
            "validation_context": {
                "trusted_ca": {"filename": str(authority)},
                "match_typed_subject_alt_names": [
                    {"san_type": "DNS", "matcher": {"exact": duties.HOST}}
                ],
            },
        },
    )
    versions: dict[str, Any] = {"explicit_http_config": {"http_protocol_options": {}}}
    if protocols == _BOTH:
        versions = {"auto_config": {"http2_protocol_options": {}}}
    return {
        "name": "origin",
        "type": "STATIC",
        "transport_socket": tls,
        "typed_extension_protocol_options": {
            _OPTIONS: {
                "@type": f"type.googleapis.com/{_OPTIONS}",
                **versions,
            }
        },
        "load_assignment": {
            "cluster_name": "origin",
            "endpoints": [{"lb_endpoints": [{"endpoint": endpoint}]}],
        },
    }


def _always() -> dict[str, Any]:
    return {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}


def _extension(name: str, kind: str, **settings: object) -> dict[str, Any]:
    return {"name": name, "typed_config": {"@type": _TYPES + kind, **settings}}
