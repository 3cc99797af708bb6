"""The text of `/etc/gitconfig` in the sandbox.

Made from a policy and from facts about the host; `app` mounts it. It is not a wall, since hostile
code can set `GIT_CONFIG_NOSYSTEM=1`: it lets an unmodified git work through the gateway. No
credential, no helper and no path of the host's programs is in it (I1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.repository import Forge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from keyhole.model.commit_identity import CommitIdentity
    from keyhole.model.host import HostPattern
    from keyhole.policy.policy import Policy, Service

NO_HOOKS = "/dev/null"
"""A path that holds no hook."""

_HTTPS_PORT, _HTTP_PORT, _SSH_PORT = 443, 80, 22
_BITBUCKET_CLOUD = "bitbucket.org"
_BITBUCKET_SSH_PORT = 7999
"""Bitbucket Data Center's own."""

Line = tuple[str, str | None, str, str]
"""Section, subsection, name and value."""

_ALWAYS: tuple[Line, ...] = (
    # An empty name resets the list, so that no packager's helper is told that a placeholder was
    # wrong. The gateway adds credentials.
    ("credential", None, "helper", ""),
    # `ext::sh -c …` in a submodule's address runs a command; a path is allowed only when typed,
    # which is git's own default since 2.38.1, and set here for older versions.
    ("protocol", "ext", "allow", "never"),
    ("protocol", "file", "allow", "user"),
    # Trees of other owners appear as nobody's inside, and the host's own `safe.directory` is not
    # known here. Git protects a user from foreign repositories; inside, all are equally foreign.
    ("safe", None, "directory", "*"),
    # Garbage collection in the background would be killed with the sandbox. Its lock, which names
    # another host, would then block the host's own for twelve hours.
    ("gc", None, "autoDetach", "false"),
    ("maintenance", None, "autoDetach", "false"),
)

_LFS: tuple[Line, ...] = (
    ("filter", "lfs", "clean", "git-lfs clean -- %f"),
    ("filter", "lfs", "smudge", "git-lfs smudge -- %f"),
    ("filter", "lfs", "process", "git-lfs filter-process"),
    ("filter", "lfs", "required", "true"),
)

COPIED_CONFIG: tuple[Line, ...] = (
    # The upstream of a new branch is in the run's own config, and gone with it: `git push` pushes a
    # branch without one to the same name, in the next run as well.
    ("push", None, "default", "current"),
)
"""Settings for repositories whose config is a copy of the run's."""

READ_ONLY_CONFIG: tuple[Line, ...] = (
    # Git writes the upstream of a new branch into the repository's config, which is read-only: it
    # would complain twice and then claim success.
    ("branch", None, "autoSetupMerge", "false"),
    # So no new branch has an upstream, and without this setting `git push` would do nothing.
    *COPIED_CONFIG,
)
"""Settings for repositories with a read-only config: in containers, and where a link cannot be
mounted."""


class Inclusion(Struct, frozen=True):
    """A file of settings for some repositories alone."""

    path: str
    directories: tuple[str, ...]
    """The directories of those repositories; one that ends in `/` includes all below it."""


def system_config(
    policy: Policy,
    person: CommitIdentity,
    hooks: str | None,
    *,
    lfs: bool,
    inclusions: Iterable[Inclusion] = (),
    signing: Sequence[Line] = (),
) -> str:
    """The whole file. `hooks` is the directory in which git looks for hooks; None: in each
    repository."""
    lines = list(_ALWAYS)
    if hooks:
        lines.append(("core", None, "hooksPath", hooks))
    lines += person_lines(person)
    lines += _LFS if lfs else ()
    lines += signing
    for service in policy.services:
        lines += [
            ("url", address, "insteadOf", written) for address, written in _rewritten(service)
        ]
    lines += [
        ("includeIf", f"gitdir:{_literal(directory)}", "path", each.path)
        for each in inclusions
        for directory in each.directories
        # A line break in a heading is an error to git, and then nothing works. A sandbox could
        # leave a directory of such a name for the next one.
        if directory.isprintable()
    ]
    return config_text(dict.fromkeys(lines))


def signing_lines(program: str, key: str) -> list[Line]:
    """Settings by which git has each commit signed by this program, with this public key."""
    return [
        ("gpg", None, "format", "ssh"),
        ("gpg", "ssh", "program", program),
        ("user", None, "signingKey", f"key::{key}"),
        ("commit", None, "gpgSign", "true"),
    ]


def openpgp_lines(program: str, key: str) -> list[Line]:
    """Settings by which git has each commit signed by this program, with a key of GnuPG's."""
    return [
        ("gpg", None, "format", "openpgp"),
        ("gpg", None, "program", program),
        ("user", None, "signingKey", key),
        ("commit", None, "gpgSign", "true"),
    ]


def person_lines(person: CommitIdentity) -> list[Line]:
    """The committer, as far as it is known; git itself asks for what is missing."""
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
    """The https address for each prefix that the same repositories have over ssh and git.

    A wildcard names no address to write. Azure DevOps has another host and path over ssh: there
    remotes must be https already.
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
    """A sort key: of several ports of one host the usual one comes first, and plain HTTP last."""
    return pattern.port != _HTTPS_PORT, pattern.port == _HTTP_PORT, pattern.port


def _base(pattern: HostPattern) -> str:
    if pattern.port == _HTTP_PORT:
        return f"http://{pattern.name}/"
    port = "" if pattern.port == _HTTPS_PORT else f":{pattern.port}"
    return f"https://{pattern.name}{port}/"


def _literal(path: str) -> str:
    """A path with its wildcard characters escaped."""
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
