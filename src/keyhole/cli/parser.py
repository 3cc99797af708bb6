"""The command line: verbs and flags. A verb's code is imported only when it is the one typed."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyhole import __version__
from keyhole.cli.main import EXIT_UNUSABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    _Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

_DESCRIPTION = """\
Run code that nobody trusts with your services but without your credentials.
"""
_EPILOG = """\
examples:
  keyhole run -- CMD…                       CMD without your credentials
  keyhole init                              write a policy for this project
  keyhole check                             is keyhole.toml valid, and what does it grant?
  keyhole why https://api.github.com/user   what would happen, and by which rule?
  keyhole why git push URL agent/x          the same for a push
  keyhole new NAME --image IMAGE            a container that stays; `exec`, `attach`, `stop`
  keyhole up                                one gateway for many sandboxes
  keyhole ps                                what runs there; `keyhole revoke --all` cuts it off
  keyhole demo                              the whole idea in a minute
"""


TRUST_ANY = "any"


class CliError(Exception):
    """Something the user can mend: a message, and the exit code it ends with."""

    def __init__(self, message: str, code: int = EXIT_UNUSABLE) -> None:
        super().__init__(message)
        self.code = code


class _Parser(argparse.ArgumentParser):
    """Flags are typed in full, in every verb: none is found by its beginning.

    Else `--u` would be `--unsafe-no-isolation`, and danger is spelled.
    """

    def __init__(self, *words: Any, **options: Any) -> None:  # noqa: ANN401 - as they come
        super().__init__(*words, **{"allow_abbrev": False, **options})


class _Unasked:
    """Stands for a verb that was not typed: its flags are described to nobody."""

    def __getattr__(self, _: str) -> Callable[..., _Unasked]:
        return lambda *_, **__: self


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Every verb with its flags; or one alone, if there is one of that name, which is quicker."""
    parser = _build(only)
    return parser if only is None or _knows(parser, only) else _build(None)


def _knows(parser: argparse.ArgumentParser, verb: str) -> bool:
    return any(verb in (action.choices or ()) for action in parser._actions)


def _build(only: str | None) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = _Parser(
        prog="keyhole",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"keyhole {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    def _verb(verbs: _Verbs, name: str, text: str) -> Any:  # noqa: ANN401 - a parser, or unasked
        return _add_verb(verbs, name, text) if only in (None, name) else _Unasked()

    run = _verb(verbs, "run", "run a command in a sandbox under this project's policy")
    run.add_argument("-q", "--quiet", action="store_true", help="say nothing but the command's own")
    run.add_argument(
        "--self-test", action="store_true", help="try every known way out again before the run"
    )
    run.add_argument(
        "--own-gateway",
        action="store_true",
        help="run a gateway for this command alone, though `keyhole up` has started one",
    )
    run.add_argument(
        "--runtime", choices=("bwrap", "docker", "podman"), help="instead of the policy's"
    )
    run.add_argument("--image", metavar="IMAGE", help="instead of the policy's; for containers")
    run.add_argument(
        "--unsafe-no-isolation",
        action="store_true",
        help="run it on this host, as you, without a sandbox, a policy or any secret of Keyhole's",
    )
    _policy_flag(run)
    trust_flag(run)
    run.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- CMD …", help="the command and its words"
    )

    check = _verb(verbs, "check", "validate a policy and say what it grants (exit 2 when wrong)")
    _policy_argument(check)
    check.add_argument(
        "--show", action="store_true", help="every value, and whether it is yours or a default"
    )
    _json_flag(check)

    why = _verb(verbs, "why", "explain what would happen to a URL, a host or a push, and why")
    why.add_argument(
        "target",
        nargs="+",
        metavar="TARGET",
        help="URL, METHOD URL, HOST[:PORT], or: git push URL REF",
    )
    why.add_argument(
        "-X",
        "--method",
        default="GET",
        help="of the request, as a rule names it: POST, GET+body, WEBSOCKET (default: GET)",
    )
    _policy_flag(why)
    _json_flag(why)

    init = _verb(verbs, "init", "look at this host and project, ask, and write keyhole.toml")
    init.add_argument("--yes", "-y", action="store_true", help="take what was found; ask nothing")
    init.add_argument("--force", action="store_true", help="replace a policy that is there")
    init.add_argument("--print", action="store_true", help="print the policy; write nothing")

    services = _verb(verbs, "services", "list the services catalogue, or show one entry")
    inner = services.add_subparsers(metavar="[show NAME]", dest="action")
    show = inner.add_parser("show", help="what one entry grants", description="Show one entry.")
    show.add_argument("name", metavar="NAME")
    _json_flag(show)
    _json_flag(services)

    policy = _verb(verbs, "policy", "the policy's JSON Schema, and acceptance of a policy")
    actions = policy.add_subparsers(metavar="ACTION", dest="action", required=True)
    schema_help = "print the JSON Schema of keyhole.toml, for editors"
    actions.add_parser("schema", help=schema_help, description=schema_help)
    trust_help = "show what a policy grants and accept it on this host"
    trust = actions.add_parser("trust", help=trust_help, description=trust_help)
    _policy_argument(trust)
    trust_flag(trust)
    _json_flag(trust)

    secret = _verb(verbs, "secret", "keep, list, test, replace and forget secrets")
    deeds = secret.add_subparsers(metavar="ACTION", dest="action", required=True)
    set_help = "keep a secret; its value comes from a prompt or standard input"
    keep = deeds.add_parser("set", help=set_help, description=set_help)
    keep.add_argument("name", metavar="NAME", help="a policy calls it store:NAME")
    places = keep.add_mutually_exclusive_group()
    places.add_argument(
        "--encrypted",
        action="store_true",
        help="by a passphrase, also where there is a keyring of the desktop",
    )
    places.add_argument(
        "--plain", action="store_true", help="not encrypted, in a file that only you can read"
    )
    _short_flag(keep)
    list_help = "names, how each is kept, its age, and where it is used; never values"
    _json_flag(deeds.add_parser("list", help=list_help, description=list_help))
    test_help = "make its service's cheapest request with it, and say what came back"
    attempt = deeds.add_parser("test", help=test_help, description=test_help)
    attempt.add_argument("name", metavar="NAME", help="in the store, or of a service")
    attempt.add_argument(
        "--path", metavar="/PATH", help="what to ask, where the catalogue does not know"
    )
    _policy_flag(attempt)
    trust_flag(attempt)
    _json_flag(attempt)
    rotate_help = "replace a secret where it is kept, and hand it to sessions that use it"
    change = deeds.add_parser("rotate", help=rotate_help, description=rotate_help)
    change.add_argument("name", metavar="NAME")
    change.add_argument(
        "--end-sessions", action="store_true", help="end the sessions that had the old one"
    )
    _short_flag(change)
    rm_help = "forget a secret"
    forget = deeds.add_parser("rm", help=rm_help, description=rm_help)
    forget.add_argument("name", metavar="NAME")

    log = _verb(verbs, "log", "what happened: every decision, by time; or verify that it is whole")
    log.add_argument("-f", "--follow", action="store_true", help="go on as events come")
    log.add_argument("--denied", action="store_true", help="only what was refused")
    log.add_argument("--session", metavar="ID", help="only this session (its first letters do)")
    parts = log.add_subparsers(metavar="verify", dest="action")
    verify_help = "find lines that were removed, changed or moved (exit 1 when there are any)"
    verify = parts.add_parser("verify", help=verify_help, description=verify_help)
    verify.add_argument("--head", metavar="DIGEST", help="what a run printed when it ended")
    _json_flag(verify)
    _json_flag(log)

    findings = _verb(
        verbs, "findings", "what runs left that this host may execute, until you dismiss it"
    )
    _findings_flags(findings)
    does = findings.add_subparsers(metavar="[list|dismiss]", dest="action")
    listing_help = "what is open; it goes away when a file is gone, or again as it was"
    listing = does.add_parser("list", help=listing_help, description=listing_help)
    _findings_flags(listing, again=True)
    dismiss_help = "you have looked at it; it is told again when the file changes"
    dismiss = does.add_parser("dismiss", help=dismiss_help, description=dismiss_help)
    dismiss.add_argument("ids", nargs="*", metavar="ID", help="as the list shows it")
    dismiss.add_argument("--all", action="store_true", help="all that the list showed last")
    _findings_flags(dismiss, again=True)

    up = _verb(verbs, "up", "start the gateway that sandboxes share; return when it is ready")
    up.add_argument(
        "--foreground", action="store_true", help="be the gateway, for service managers"
    )
    expected = up.add_argument_group("a sandbox that others make, as compose does")
    expected.add_argument(
        "--door",
        metavar="DIR",
        type=Path,
        help="expect a sandbox that others make, whose holder registers its door here",
    )
    expected.add_argument(
        "--furnish",
        metavar="DIR",
        type=Path,
        help="where `etc` and `kit` of that sandbox are written, which it mounts read-only",
    )
    expected.add_argument("--policy", metavar="FILE", type=Path, help="what that sandbox may do")
    trust_flag(expected)
    # The descriptor by which the gateway speaks to the `keyhole up` that started it.
    up.add_argument("--line", type=int, help=argparse.SUPPRESS)
    _json_flag(up)

    _verb(verbs, "down", "end the gateway and all its sessions; return when it is gone")

    status = _verb(verbs, "status", "whether a gateway is up, what it serves, how it is hardened")
    _watch_flag(status)
    status.add_argument("--metrics", action="store_true", help="counters, for Prometheus")
    _json_flag(status)

    health = _verb(
        verbs, "health", "whether sandboxes can work now, or what they lack (exit 1 when anything)"
    )
    _json_flag(health)

    ps = _verb(verbs, "ps", "list sandboxes and sessions: what they did, and what is left to them")
    _watch_flag(ps)
    _json_flag(ps)

    revoke = _verb(verbs, "revoke", "cut sessions off for good; their sandboxes go on without")
    revoke.add_argument("ids", nargs="*", metavar="ID", help="of a session (its first letters do)")
    revoke.add_argument("--all", action="store_true", help="every session of the gateway")

    new = _verb(verbs, "new", "make a sandbox that has a name and stays, and start it")
    _name_argument(new, "what it is called from then on")
    new.add_argument("--runtime", choices=("docker", "podman"), help="instead of the policy's")
    new.add_argument("--image", metavar="IMAGE", help="instead of the policy's")
    _policy_flag(new)
    trust_flag(new)
    new.add_argument(
        "command",
        nargs="?",
        action=_Command,
        metavar="-- CMD …",
        help="what it runs; without one it idles, and `keyhole exec` brings commands",
    )

    begin = _verb(verbs, "start", "start a sandbox that was stopped; its home is as it was left")
    _name_argument(begin)
    trust_flag(begin)
    # The descriptor by which a supervisor speaks to the verb that started it.
    begin.add_argument("--line", type=int, help=argparse.SUPPRESS)

    join = _verb(verbs, "exec", "run a command in a sandbox that has a name and runs")
    join.add_argument(
        "-q", "--quiet", action="store_true", help="say nothing but the command's own"
    )
    _name_argument(join)
    join.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- CMD …", help="the command and its words"
    )

    attach = _verb(verbs, "attach", "see and use the terminal of what a sandbox runs")
    _name_argument(attach)

    stop = _verb(verbs, "stop", "end sandboxes, by name or by the id of their session")
    stop.add_argument(
        "ids", nargs="+", metavar="NAME|ID", help="of an id, the first letters will do"
    )

    destroy = _verb(verbs, "destroy", "end sandboxes that have a name, and remove their homes")
    destroy.add_argument("names", nargs="+", metavar="NAME")

    prune = _verb(verbs, "prune", "remove what killed runs left in Docker or Podman")
    _json_flag(prune)

    allow = _verb(verbs, "allow", "let a running session connect to one host more, for a while")
    allow.add_argument("id", metavar="ID", help="of the session (its first letters do)")
    allow.add_argument("host", metavar="HOST", help="name, or name:port; it is tunnelled")
    allow.add_argument(
        "--for", dest="duration", default="10m", metavar="TIME", help="how long (default: 10m)"
    )
    allow.add_argument(
        "--uses", type=int, default=10, metavar="N", help="how many connections (default: 10)"
    )

    reload = _verb(verbs, "reload", "have the gateway read all policies in use again")
    _json_flag(reload)

    doctor = _verb(
        verbs,
        "doctor",
        "prove from inside a sandbox that each wall stands on this host, and say which clients "
        "trust a session's CA",
    )
    _runtime_flags(doctor)
    _json_flag(doctor)

    completion = _verb(verbs, "completion", "print a completion script for your shell")
    completion.add_argument("shell", choices=["bash", "zsh", "fish", "tcsh"])

    demo = _verb(verbs, "demo", "show the whole idea in a minute on this host alone")
    _runtime_flags(demo)
    return parser


def run_verb(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Parse, import the verb's module, and run it."""
    known = argparse.Namespace(json=False)
    words, command = _parted(_protected(arguments))
    options, unknown = parser.parse_known_args(words, known)
    if command is not None:
        options.command = command
    if unknown:
        parser.error(_unrecognised(options.verb, unknown))
    if options.verb == "run" and options.command:
        from keyhole.cli.ahead import begin_helper, begin_plane

        # An engine makes a container's network, so no helper has to.
        isolated = not options.unsafe_no_isolation
        needed = options.runtime in (None, "bwrap") and isolated
        options.helper = begin_helper() if needed else None
        options.plane = begin_plane(alone=options.own_gateway) if isolated else None
    module = importlib.import_module(f"keyhole.cli.{options.verb}")
    try:
        code: int = module.run(options)
    except CliError as error:
        print(f"keyhole: {error}", file=sys.stderr)
        return error.code
    return code


def _unrecognised(verb: str, words: Sequence[str]) -> str:
    if verb != "secret":
        return f"unrecognized arguments: {' '.join(words)}"
    # Not repeated: a CI log would keep what may be a secret (I8).
    return (
        "a value is never an argument: your shell keeps it, and /proc shows it to every process. "
        "`keyhole secret set NAME` asks for it; one that you typed here should be changed"
    )


def trust_flag(parser: argparse._ActionsContainer) -> None:
    """`--trust` accepts whatever is there; `--trust=sha256:…` only what has that digest."""
    parser.add_argument(
        "--trust",
        nargs="?",
        const=TRUST_ANY,
        type=_digest,
        metavar="sha256:…",
        help="accept without asking; with a digest, only that policy",
    )


def _digest(text: str) -> str:
    if text != TRUST_ANY and not text.startswith("sha256:"):
        raise argparse.ArgumentTypeError("a digest is 'sha256:…'; a FILE goes before --trust")
    return text


def _protected(arguments: Sequence[str]) -> list[str]:
    """`why git push --force …`: the flags after `git` are the target's, not ours."""
    words = list(arguments)
    if words[:1] == ["why"] and "git" in words and "--" not in words:
        words.insert(words.index("git"), "--")
    return words


def _parted(words: list[str]) -> tuple[list[str], list[str] | None]:
    """`new NAME --flags -- CMD…`: flags may come after the name, and none of CMD's is ours."""
    if words[:1] != ["new"]:
        return words, None
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


class _Command(argparse.Action):
    """A command that was typed without `--` before it."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, *_: object
    ) -> None:
        """Say how it is typed; there are no values where there is none."""
        if values:
            parser.error("a command comes after `--`: keyhole new NAME -- CMD…")


def _add_verb(verbs: _Verbs, name: str, text: str) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(verb=name)
    return parser


def _policy_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "policy", nargs="?", metavar="FILE", type=Path, help="default: ./keyhole.toml"
    )


def _name_argument(parser: argparse.ArgumentParser, text: str | None = None) -> None:
    parser.add_argument("name", metavar="NAME", help=text)


def _policy_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", metavar="FILE", type=Path, help="default: ./keyhole.toml")


def _short_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--unsafe-short",
        action="store_true",
        help="keep one of fewer than 16 characters, which is not removed from answers",
    )


def _runtime_flags(parser: argparse.ArgumentParser) -> None:
    """For verbs that make a sandbox of nobody's project."""
    parser.add_argument(
        "--runtime",
        choices=("bwrap", "docker", "podman"),
        default="bwrap",
        help="what makes the sandbox (default: bwrap)",
    )
    parser.add_argument(
        "--image",
        metavar="IMAGE",
        help="for containers; without it, one is made of this host's programs for the moment",
    )


def _watch_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--watch", action="store_true", help="show it again as it changes")


def _findings_flags(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    # SUPPRESS: as for --json.
    parser.add_argument(
        "--policy",
        metavar="FILE",
        type=Path,
        default=argparse.SUPPRESS if again else None,
        help="of the project (default: ./keyhole.toml)",
    )
    parser.add_argument(
        "--every-project",
        action="store_true",
        default=argparse.SUPPRESS if again else False,
        help="not only of this one",
    )
    _json_flag(parser)


def _json_flag(parser: argparse.ArgumentParser) -> None:
    # SUPPRESS: a verb below another must not reset what was given before it.
    parser.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="machine-readable output"
    )
