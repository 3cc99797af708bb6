"""What a policy grants of one MCP server: tools, resources, prompts. Nothing, unless it is named.

Read from the policy by `schema.py`, and asked by the judge of messages.
"""

from __future__ import annotations

import enum
import re
from typing import TypeAlias

from msgspec import Struct

from keyhole.model.errors import Unparsable
from keyhole.model.glob import Glob, segment_matches

Scalar: TypeAlias = bool | int | str
"""A value that an argument may be held to; a text may have `*`."""

MAX_NAME = 1024
"""Characters of a name, URI or argument that is compared with a pattern: more than any server has,
and less than the reader of large bodies keeps of a text."""

MAX_TEMPLATE_PARTS = 64
"""Parts of a URI template, between `/`, `?` and `#`: each is compared with each part of a pattern,
and a list has a thousand templates (I12)."""

MAX_TOOLS = 1024
"""Tools of one server that are remembered; the largest servers have a few hundred."""

MAX_ARGUMENTS = 256
"""Arguments of a call, and items of one, that are compared with `where` (I12)."""

MAX_CONDITIONS = 16
"""Arguments that one entry of `tools` can constrain, and values of each."""

_NAME = re.compile(r"[!-~]{1,256}")
_URI_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9+.*-]*:[!-~]+|\*\*")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]*")
_ENCODED = re.compile(r"%(2e|2f|5c|25|3f|23)", re.IGNORECASE)
_PARTS = re.compile("([/?#])")
_VARIABLE = re.compile(r"\{[A-Za-z0-9_.,*:%-]+\}")
_ENDPOINT = re.compile(r"/[!-~]*")


class ServerRequest(enum.StrEnum):
    """A kind of request that a server makes of its client."""

    SAMPLING = "sampling"
    """It asks the client's model, at the user's cost."""
    ELICITATION = "elicitation"
    """It asks the person for a text or to open an address."""
    ROOTS = "roots"
    """It asks which directories the client works in."""


REQUEST_METHODS = {
    "sampling/createMessage": ServerRequest.SAMPLING,
    "elicitation/create": ServerRequest.ELICITATION,
    "roots/list": ServerRequest.ROOTS,
}


class ToolGrant(Struct, frozen=True):
    """A pattern of tools' names, and what their arguments are held to."""

    name: str
    where: tuple[tuple[str, tuple[Scalar, ...]], ...] = ()

    def covers(self, tool: str) -> bool:
        """Whether it is about this tool."""
        return len(tool) <= MAX_NAME and segment_matches(self.name, tool)

    def flaw(self, arguments: dict[str, object]) -> str:
        """The argument that the grant does not permit, or an empty text."""
        if self.where and len(arguments) > MAX_ARGUMENTS:
            return self.where[0][0]
        for key, values in self.where:
            # Attack: servers in Go and .NET read `Team` as `team`, and the last of both.
            if any(name != key and name.casefold() == key.casefold() for name in arguments):
                return key
            if not _permitted(arguments.get(key), values):
                return key
        return ""

    def __str__(self) -> str:
        said = (f"{key} = {_show(values)}" for key, values in self.where)
        return f"{self.name} where {', '.join(said)}" if self.where else self.name


def _permitted(value: object, permitted: tuple[Scalar, ...]) -> bool:
    if isinstance(value, list):
        return 0 < len(value) <= MAX_ARGUMENTS and all(
            _is_one_of(item, permitted) for item in value
        )
    return _is_one_of(value, permitted)


def _is_one_of(value: object, permitted: tuple[Scalar, ...]) -> bool:
    for each in permitted:
        if type(value) is not type(each):
            continue  # 1 is not true, and 1.0 may be read otherwise by the server
        if isinstance(each, str) and isinstance(value, str):
            if len(value) <= MAX_NAME and segment_matches(each, value):
                return True
        elif value == each:
            return True
    return False


def _show(values: tuple[Scalar, ...]) -> str:
    texts = [str(v).lower() if isinstance(v, bool) else str(v) for v in values]
    return " or ".join(texts)


class SeenTool(Struct, frozen=True):
    """A tool in a list of a server, with the digest of what a model sees of it."""

    name: str
    digest: str
    accepted: bool
    """Whether it counts as accepted from now on: the first list of a service, and every one where
    the policy does not pin."""


class ResourceGrant(Struct, frozen=True):
    """A pattern of URIs."""

    text: str
    parts: Glob

    def __str__(self) -> str:
        return self.text


class McpGrant(Struct, frozen=True):
    """Everything that a policy grants of one server."""

    tools: tuple[ToolGrant, ...] = ()
    resources: tuple[ResourceGrant, ...] = ()
    prompts: tuple[str, ...] = ()
    server_requests: frozenset[ServerRequest] = frozenset()
    endpoints: tuple[str, ...] = ()
    """Paths, with their queries, that messages are sent to; none: any path without a query."""
    pin: bool = False
    """Whether tools that are new or have changed since they were accepted are refused."""
    accepted: tuple[tuple[str, str], ...] = ()
    """Tools that were accepted before, with their digests; not of the file, but of Keyhole's
    state."""

    def lists_tool(self, name: str) -> bool:
        """Whether a tool may be called at all, and so is listed."""
        return any(grant.covers(name) for grant in self.tools)

    def argument_flaw(self, name: str, arguments: dict[str, object]) -> str | None:
        """None: the call is granted; else the argument that is not, or "" if the tool is not."""
        flaw = ""
        for grant in self.tools:
            if grant.covers(name):
                found = grant.flaw(arguments)
                if not found:
                    return None
                flaw = flaw or found
        return flaw

    def grants_resource(self, uri: str) -> bool:
        """Whether a resource may be read."""
        parts = split_uri(uri)
        return parts is not None and any(each.parts.matches(parts) for each in self.resources)

    def lists_template(self, template: str) -> bool:
        """Whether some resource of a URI template may be granted."""
        shape = _shape(template)
        return shape is not None and any(each.parts.overlaps(shape) for each in self.resources)

    def grants_template(self, template: str) -> bool:
        """Whether every resource of a URI template is granted, as for completions of its
        variables."""
        shape = _shape(template)
        return shape is not None and any(each.parts.covers(shape) for each in self.resources)

    def grants_prompt(self, name: str) -> bool:
        """Whether a prompt may be fetched."""
        return len(name) <= MAX_NAME and any(segment_matches(each, name) for each in self.prompts)


def _shape(template: str) -> Glob | None:
    """The resources of a URI template as a pattern; None if it is not plain."""
    if len(template) > MAX_NAME:
        return None
    # `{name}` stands for a part; `{+name}`, `{/name}`, `{?name}` and the like for any parts.
    plain, operator, _ = _VARIABLE.sub("*", template).partition("{")
    parts = tuple(_PARTS.split(plain))
    if len(parts) > MAX_TEMPLATE_PARTS or {".", ".."} & set(parts):
        return None
    return Glob((*parts[:-1], "**") if operator else parts)


def split_uri(uri: str) -> tuple[str, ...] | None:
    """The parts of a URI, with `/`, `?` and `#` as parts of their own; None if it is not plain.

    Attack: `file:///docs/../etc/passwd` lies under `file:///docs/**` as a text, and elsewhere for
    the server; so it is for encoded dots and slashes.
    """
    if len(uri) > MAX_NAME or not _URI.fullmatch(uri) or "\\" in uri or _ENCODED.search(uri):
        return None
    parts = tuple(_PARTS.split(uri))
    return None if {".", ".."} & set(parts) else parts


def read_tool(value: object) -> ToolGrant:
    """An entry of `tools`: a pattern, or a table with `name` and `where`."""
    if isinstance(value, str):
        return ToolGrant(_read_name(value))
    if not isinstance(value, dict):
        raise Unparsable("a tool is a text or a table", '{ name = "get_issue", where = {…} }')
    unknown = sorted(set(value) - {"name", "where"})
    if unknown:
        raise Unparsable(f"a tool has no '{unknown[0]}'", "name, where")
    name, where = value.get("name"), value.get("where", {})
    if not isinstance(name, str):
        raise Unparsable("a tool has a name", 'name = "get_issue"')
    if not isinstance(where, dict) or len(where) > MAX_CONDITIONS:
        raise Unparsable(
            f"'where' is a table of at most {MAX_CONDITIONS} arguments", '{ team = "ENG" }'
        )
    return ToolGrant(_read_name(name), tuple((k, _read_values(v)) for k, v in where.items()))


def _read_values(value: object) -> tuple[Scalar, ...]:
    values = value if isinstance(value, list) else [value]
    if not values or len(values) > MAX_CONDITIONS:
        raise Unparsable(f"an argument has from 1 to {MAX_CONDITIONS} permitted values")
    for each in values:
        if not isinstance(each, bool | int | str):
            raise Unparsable("an argument is held to a text, a whole number, true or false")
    return tuple(values)


def _read_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise Unparsable("a name has up to 256 printable characters of ASCII, without blanks")
    return value


def read_prompt(value: str) -> str:
    """An entry of `prompts`."""
    return _read_name(value)


def read_resource(value: str) -> ResourceGrant:
    """An entry of `resources`: `*` is a part of a URI without `/`, `?` and `#`, `**` is any."""
    if not _URI_PATTERN.fullmatch(value):
        raise Unparsable("a resource is a URI", "linear://issues/*")
    parts = tuple(_PARTS.split(value))
    if any("**" in part and part != "**" for part in parts):
        raise Unparsable("'**' stands alone between slashes")
    return ResourceGrant(value, Glob(parts))


def read_endpoint(value: str) -> str:
    """An entry of `endpoints`: a path, with its query."""
    if not _ENDPOINT.fullmatch(value) or "#" in value:
        raise Unparsable("an endpoint is a path, with its query", "/mcp?read_only=true")
    return value
