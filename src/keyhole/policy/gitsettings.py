"""The sandbox's system-wide git configuration, as text: what `/etc/gitconfig` says inside.

Made from a policy and from what the host told of itself; `app` places it. Nothing in it keeps
hostile code from anything, which can say `GIT_CONFIG_NOSYSTEM=1`: it lets honest git work through
the gateway as it is. No credential, no helper and no path of the host's programs is in it (I1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.repository import Forge
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from keyhole.model.host import HostPattern
    from keyhole.model.person import Person
    from keyhole.policy.policy import Policy, Service

NO_HOOKS = "/dev/null"
"""A place that holds no hook."""

_HTTPS_PORT, _HTTP_PORT, _SSH_PORT = 443, 80, 22
_BITBUCKET_CLOUD = "bitbucket.org"
_BITBUCKET_SSH_PORT = 7999
"""Bitbucket Data Center's own."""

Line = tuple[str, str | None, str, str]
"""Section, subsection, name and value."""

_ALWAYS: tuple[Line, ...] = (
    # An empty name resets the list: no helper of a packager's, none to be asked, none to be told
    # that a placeholder was wrong. The gateway adds credentials.
    ("credential", None, "helper", ""),
    # `ext::sh -c …` in a submodule's address runs a command; a path is for who types it, which is
    # git's own default since 2.38.1, and said here to those before.
    ("protocol", "ext", "allow", "never"),
    ("protocol", "file", "allow", "user"),
    # Trees of other owners are shown as nobody's, and what the host's settings call safe is not
    # known here. Git guards a user from what lies about; inside, all is equally strange.
    ("safe", None, "directory", "*"),
    # Left to itself in the background it would be killed with the sandbox, and its lock, which
    # bears another host's name, would hold up the host's own for twelve hours.
    ("gc", None, "autoDetach", "false"),
    ("maintenance", None, "autoDetach", "false"),
)

_LFS: tuple[Line, ...] = (
    ("filter", "lfs", "clean", "git-lfs clean -- %f"),
    ("filter", "lfs", "smudge", "git-lfs smudge -- %f"),
    ("filter", "lfs", "process", "git-lfs filter-process"),
    ("filter", "lfs", "required", "true"),
)

READ_ONLY_CONFIG: tuple[Line, ...] = (
    # Which remote branch a new one follows is written into the repository's config, which is
    # read-only: git would say so twice and then claim success.
    ("branch", None, "autoSetupMerge", "false"),
    # And so no new branch has an upstream, without which `git push` does nothing unless told this.
    ("push", None, "default", "current"),
)
"""For repositories whose config is protected."""


@dataclass(frozen=True, slots=True)
class Inclusion:
    """A file of settings for some repositories alone."""

    path: str
    directories: tuple[str, ...]
    """Of those repositories; one that ends in `/` means all that lie below it."""


def system_config(
    policy: Policy,
    person: Person,
    hooks: str | None,
    *,
    lfs: bool,
    inclusions: Iterable[Inclusion] = (),
) -> str:
    """The whole file. `hooks` is where git looks for hooks, None: in each repository."""
    lines = list(_ALWAYS)
    if hooks:
        lines.append(("core", None, "hooksPath", hooks))
    lines += person_lines(person)
    lines += _LFS if lfs else ()
    for service in policy.services:
        lines += [
            ("url", address, "insteadOf", written) for address, written in _rewritten(service)
        ]
    lines += [
        ("includeIf", f"gitdir:{_literal(directory)}", "path", each.path)
        for each in inclusions
        for directory in each.directories
        # A line break in a heading is an error to git, and then nothing works. A sandbox could
        # leave such a directory for the next.
        if directory.isprintable()
    ]
    return config_text(dict.fromkeys(lines))


def person_lines(person: Person) -> list[Line]:
    """Who commits, as far as it is known; git asks for the rest itself."""
    known = (("name", person.name), ("email", person.email))
    return [("user", None, name, value) for name, value in known if value]


def config_text(lines: Iterable[Line]) -> str:
    """Settings in git's notation, those of one section together."""
    text, heading = "", None
    for section, subsection, name, value in lines:
        if heading != (heading := (section, subsection)):
            text += f"[{section}{_subsection(subsection)}]\n"
        text += f"\t{name} = {_escaped(value)}\n"
    return text


def _rewritten(service: Service) -> Iterator[tuple[str, str]]:
    """The https address for each beginning that the same repositories have over ssh and git.

    A wildcard names no address to write, and Azure DevOps has others over ssh, host and path:
    there remotes are to be https already.
    """
    git = service.git
    if git is None or git.forge is Forge.AZURE_DEVOPS:
        return
    patterns = (p for h in service.hosts if h.git for p in h.patterns if not p.subdomains)
    chosen: dict[str, HostPattern] = {}
    for pattern in sorted(patterns, key=_unusual):
        chosen.setdefault(pattern.name, pattern)
    for name, pattern in chosen.items():
        base, ports = _base(pattern), [_SSH_PORT]
        if git.forge is Forge.BITBUCKET and name != _BITBUCKET_CLOUD:
            base, ports = f"{base}scm/", [_SSH_PORT, _BITBUCKET_SSH_PORT]
        yield base, f"git@{name}:"
        yield base, f"ssh://git@{name}/"
        for port in ports:
            yield base, f"ssh://git@{name}:{port}/"
        yield base, f"git://{name}/"


def _unusual(pattern: HostPattern) -> tuple[bool, bool, int]:
    """Of several ports of one host the usual one is meant, and plain HTTP last."""
    return pattern.port != _HTTPS_PORT, pattern.port == _HTTP_PORT, pattern.port


def _base(pattern: HostPattern) -> str:
    if pattern.port == _HTTP_PORT:
        return f"http://{pattern.name}/"
    port = "" if pattern.port == _HTTPS_PORT else f":{pattern.port}"
    return f"https://{pattern.name}{port}/"


def _literal(path: str) -> str:
    """A path in which no character is a wildcard's."""
    return "".join(f"\\{char}" if char in "*?[\\" else char for char in path)


def _subsection(name: str | None) -> str:
    if name is None:
        return ""
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f' "{escaped}"'


def _escaped(value: str) -> str:
    for raw, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t"), ("\b", "\\b")):
        value = value.replace(raw, escaped)
    return f'"{value}"'
