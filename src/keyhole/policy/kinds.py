"""The types that a policy's keys have: how each is read, named and described to editors.

A kind turns a TOML value into the canonical type or raises `Unparsable`; lists and tables report
each bad item at its own place. Used by `schema.py`, which assigns a kind to each key.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.inject.injection import KEYS as INJECT_KEYS
from keyhole.inject.injection import Injection, parse_injection
from keyhole.inject.prices import PRICE_KEYS, ModelPrice, parse_price
from keyhole.model.errors import Unparsable
from keyhole.model.host import Host, parse_port
from keyhole.model.money import parse_money
from keyhole.model.quantity import parse_duration, parse_size
from keyhole.model.rule import AccessRule
from keyhole.policy.inbound import MAX_INBOUND, read_inbound
from keyhole.policy.ports import LEAST_PORT, MAX_PORT, MAX_PORTS, read_host_port, read_published

if TYPE_CHECKING:
    import enum
    from collections.abc import Callable, Iterator, Mapping

Item = tuple[tuple[str | int, ...], object]
"""A relative path and the value at it."""


class ValueKind(Struct, frozen=True):
    """A type of value. `items` splits a container into the parts that `read` is applied to."""

    name: str
    read: Callable[[Any], Any]
    schema: Mapping[str, Any]
    items: Callable[[Any], Iterator[Item]] | None = None


class HostPort(Struct, frozen=True, order=True):
    """An exact host and port: a key of `[upstream.connect]`."""

    host: Host
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class SocketAddress(Struct, frozen=True):
    """An address and port to dial instead."""

    ip: str
    """In its canonical form. As text, because a struct with an address of either version cannot be
    sent between processes."""
    port: int

    @property
    def address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The same as an address, to be judged."""
        return ipaddress.ip_address(self.ip)

    def __str__(self) -> str:
        ip = f"[{self.address}]" if self.address.version == 6 else str(self.address)
        return f"{ip}:{self.port}"


def read_text(value: object) -> str:
    """A text without control characters."""
    if not isinstance(value, str):
        raise Unparsable(f"a text is expected, not {_called(value)}")
    if not value or any(ord(c) < 0x20 or ord(c) == 0x7F for c in value):
        raise Unparsable("a text has at least one character and no control characters")
    return value


def text(name: str, read: Callable[[str], Any], pattern: str | None = None) -> ValueKind:
    """A text that `read` turns into a canonical type."""
    schema = {"type": "string"} | ({"pattern": pattern} if pattern else {})
    return ValueKind(name, lambda value: read(read_text(value)), schema)


def list_of(name: str, read: Callable[[str], Any], pattern: str | None = None) -> ValueKind:
    """A list of texts; an item that occurs twice is a mistake."""
    item = {"type": "string"} | ({"pattern": pattern} if pattern else {})
    schema = {"type": "array", "items": item, "uniqueItems": True}
    return ValueKind(name, lambda value: read(read_text(value)), schema, items_of)


def items_of(value: object) -> Iterator[Item]:
    """The items of a list of any type."""
    if not isinstance(value, list):
        raise Unparsable(f"a list is expected, not {_called(value)}", _as_list(value))
    for index, item in enumerate(value):
        yield (index,), item


def choice(values: type[enum.StrEnum]) -> ValueKind:
    """One of a few words."""
    words = [str(v) for v in values]

    def read(value: object) -> enum.StrEnum:
        if value not in words:
            # `http = 2` is a number in TOML.
            hint = f'"{value}"' if str(value) in words else nearest(value, words)
            raise Unparsable(f"one of {', '.join(words)} is expected", hint)
        return values(value)

    return ValueKind(", ".join(words), read, {"enum": words})


def nearest(value: object, words: list[str]) -> str | None:
    """The right spelling that is probably meant."""
    close = difflib.get_close_matches(str(value).lower(), words, 1, 0.6)
    return close[0] if close else None


def _read_bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise Unparsable(f"true or false is expected, not {_called(value)}")
    return value


def _read_count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unparsable(f"a whole number is expected, not {_called(value)}")
    if not 0 < value <= MAX_COUNT:
        raise Unparsable(f"a number from 1 to {MAX_COUNT} is expected")
    return value


def _read_cpus(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unparsable(f"a number is expected, not {_called(value)}")
    if not MIN_CPUS <= value <= MAX_CPUS:  # NaN fails this, too
        raise Unparsable(f"a number from {MIN_CPUS} to {MAX_CPUS} is expected")
    return float(value)


MIN_CPUS, MAX_CPUS = 0.01, 8192
"""Processors that a sandbox may be given: a hundredth is the least that the kernel divides, and no
kernel has more than this."""

MAX_COUNT = 10_000_000
"""The largest count or rate of a limit; a larger one is probably a typing error."""

SUPPORTED_VERSION = 1


MAX_TOTAL = 10**12
"""The largest total of a budget: tokens are counted in millions."""


def _read_total(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unparsable(f"a whole number is expected, not {_called(value)}")
    if not 0 < value <= MAX_TOTAL:
        raise Unparsable(f"a number from 1 to {MAX_TOTAL} is expected")
    return value


def _read_version(value: object) -> int:
    if value != SUPPORTED_VERSION or isinstance(value, bool):
        raise Unparsable("this Keyhole reads version 1 of the policy", "version = 1")
    return SUPPORTED_VERSION


def _read_inject(value: object) -> Injection:
    if not isinstance(value, dict):
        raise Unparsable(
            f"a table is expected, not {_called(value)}",
            '{ header = "Authorization", value = "Bearer {secret}" }',
        )
    unknown = sorted(set(value) - set(INJECT_KEYS))
    if unknown:
        raise Unparsable(f"'inject' has no '{unknown[0]}'", nearest(unknown[0], list(INJECT_KEYS)))
    return parse_injection(value)


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VOLUME = re.compile("[a-z0-9][a-z0-9_.-]{0,62}")


def read_variable(value: str) -> str:
    """The name of an environment variable."""
    if not _VARIABLE.fullmatch(value):
        raise Unparsable("a variable's name has letters, digits and '_'")
    return value


def _table_items(value: object) -> Iterator[Item]:
    if not isinstance(value, dict):
        raise Unparsable(f"a table is expected, not {_called(value)}")
    for key, item in value.items():
        yield (key,), (key, item)


def _read_env(pair: tuple[str, object]) -> tuple[str, str]:
    if not isinstance(pair[1], str) or "\0" in pair[1]:
        raise Unparsable("a variable's value is a text without NUL")
    return read_variable(pair[0]), pair[1]


def _read_volume(pair: tuple[str, object]) -> tuple[str, str]:
    path, name = read_text(pair[0]), read_text(pair[1])
    parts = path.split("/")
    if parts[0] not in ("", "~") or len(parts) < 2 or {"", ".", ".."} & set(parts[1:]):
        raise Unparsable("a place is a plain path that begins with '/' or '~/'")
    if not _VOLUME.fullmatch(name):
        raise Unparsable(
            "a volume's name has up to 63 lower-case letters, digits, '-', '_' and '.'"
        )
    return path, name


def _read_connect(pair: tuple[str, object]) -> tuple[HostPort, SocketAddress]:
    return _read_endpoint(pair[0]), _read_socket_address(read_text(pair[1]))


def _read_body(pair: tuple[str, object]) -> tuple[AccessRule, int]:
    return AccessRule.parse(pair[0]), parse_size(read_text(pair[1]))


def _read_price(pair: tuple[str, object]) -> ModelPrice:
    if not isinstance(pair[1], dict):
        raise Unparsable(
            f"a table is expected, not {_called(pair[1])}", '{ input = "3 USD", output = "15 USD" }'
        )
    return parse_price(pair[0], pair[1])


_PERCENT = re.compile("([1-9][0-9]?)%")


def _read_percent(value: str) -> int:
    found = _PERCENT.fullmatch(value)
    if not found:
        raise Unparsable("a share is 1% to 99%", "75%")
    return int(found[1])


def _read_endpoint(value: str) -> HostPort:
    name, colon, port = value.rpartition(":")
    if not colon:
        raise Unparsable("the key is a host and port", f'"{value}:443" = …')
    return HostPort(Host.parse(name), parse_port(port))


def _read_socket_address(value: str) -> SocketAddress:
    ip, colon, port = value.rpartition(":")
    if not colon:
        raise Unparsable("an address and port is expected", "as in '10.0.3.7:8443'")
    try:
        address = ipaddress.ip_address(ip.removeprefix("[").removesuffix("]"))
    except ValueError:
        raise Unparsable("an IP address is expected before the port", "'10.0.3.7:8443'") from None
    if address.version == 6 and not (ip.startswith("[") and ip.endswith("]")):
        raise Unparsable("an IPv6 address is written in brackets", f"[{ip}]:{port}")
    return SocketAddress(str(address), parse_port(port))


_CALLED = {
    "str": "a text",
    "bool": "a boolean",
    "int": "a number",
    "float": "a number",
    "list": "a list",
    "dict": "a table",
}


def _called(value: object) -> str:
    return _CALLED.get(type(value).__name__, "a date")


def _as_list(value: object) -> str | None:
    return f'["{value}"]' if isinstance(value, str) and value.isprintable() else None


VERSION = ValueKind("1", _read_version, {"const": SUPPORTED_VERSION})
BOOL = ValueKind("bool", _read_bool, {"type": "boolean"})
COUNT = ValueKind("number", _read_count, {"type": "integer", "minimum": 1, "maximum": MAX_COUNT})
CPUS = ValueKind("number", _read_cpus, {"type": "number", "minimum": MIN_CPUS, "maximum": MAX_CPUS})
TOTAL = ValueKind("number", _read_total, {"type": "integer", "minimum": 1, "maximum": MAX_TOTAL})
_SIZE_PATTERN = "^[0-9]{1,12} ?(B|[KMGT]iB|[kMGT]B)$"
SIZE = text("size", parse_size, _SIZE_PATTERN)
DURATION = text("duration", parse_duration, "^([0-9]{1,9}(ms|s|m|h|d))+$")
TEXT = text("text", lambda value: value)
PATH = text("path", lambda value: value)
PATHS = list_of("paths", lambda value: value)
VARIABLES = list_of("names", read_variable)
INJECT = ValueKind(
    "`{header, value}`, `{basic_user}`, `{query}`, `{sigv4, region}`, `{google}`",
    _read_inject,
    {
        "type": "object",
        "additionalProperties": False,
        "properties": {key: {"type": "string"} for key in INJECT_KEYS},
    },
)
ENV = ValueKind(
    "table",
    _read_env,
    {"type": "object", "additionalProperties": {"type": "string"}},
    _table_items,
)
VOLUMES = ValueKind(
    '`"/path" = "name"`',
    _read_volume,
    {
        "type": "object",
        "additionalProperties": {"type": "string", "pattern": f"^{_VOLUME.pattern}$"},
    },
    _table_items,
)
_PORT_SCHEMA = {"type": "integer", "minimum": LEAST_PORT, "maximum": MAX_PORT}
PUBLISHED = ValueKind(
    '`PORT`, `"OUTER:INNER"`',
    read_published,
    {
        "type": "array",
        "items": {
            "anyOf": [_PORT_SCHEMA, {"type": "string", "pattern": "^[0-9]{1,5}(:[0-9]{1,5})?$"}]
        },
        "uniqueItems": True,
        "maxItems": MAX_PORTS,
    },
    items_of,
)
HOST_PORTS = ValueKind(
    "numbers",
    read_host_port,
    {"type": "array", "items": _PORT_SCHEMA, "uniqueItems": True, "maxItems": MAX_PORTS},
    items_of,
)
INBOUND = ValueKind(
    '`"PORT from NETWORK"`, `"PORT from LABEL=VALUE"`',
    read_inbound,
    {
        "type": "array",
        "items": {"type": "string", "pattern": "^[0-9]{1,5} from [^ ]+$"},
        "uniqueItems": True,
        "maxItems": MAX_INBOUND,
    },
    items_of,
)
BODIES = ValueKind(
    '`"METHOD /path" = "size"`',
    _read_body,
    {
        "type": "object",
        "additionalProperties": {"type": "string", "pattern": _SIZE_PATTERN},
    },
    _table_items,
)
MONEY = text("money", parse_money, r"^[0-9]{1,7}(\.[0-9]{1,9})? ?USD$")
PERCENT = text("share", _read_percent, f"^{_PERCENT.pattern}$")
PRICES = ValueKind(
    '`"MODEL" = { input, output, … }`',
    _read_price,
    {
        "type": "object",
        "additionalProperties": {
            "type": "object",
            "additionalProperties": False,
            "required": ["input", "output"],
            "properties": {
                key: {"type": "integer", "minimum": 1} if key == "long_from" else {"type": "string"}
                for key in PRICE_KEYS
            },
        },
    },
    _table_items,
)
CONNECT = ValueKind(
    '`"host:port" = "ip:port"`',
    _read_connect,
    {"type": "object", "additionalProperties": {"type": "string"}},
    _table_items,
)
