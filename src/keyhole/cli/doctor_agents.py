"""`keyhole doctor --agents`: tries the installed agents, and prints a row for each as it ends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from keyhole.app.proofs.agent_trial import AgentTrial, TrialHost, try_agent
from keyhole.app.setup.agent_profiles import FileProfiles
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_DENIED, EXIT_OK
from keyhole.cli.paint import paint, print_json
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.host.agent_programs import find_agent
from keyhole.host.host_environment import HostEnvironment
from keyhole.model.errors import KeyholeError
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable


def run(names: list[str], *, as_json: bool) -> int:
    """Try these agents, or all that are installed."""
    profiles = FileProfiles()
    unknown = [name for name in names if name not in profiles]
    if unknown:
        raise CliError(
            f"no profile of an agent is named '{visible(unknown[0])}'; these are: "
            f"{', '.join(profiles)}"
        )
    host = TrialHost(find_host_paths(), environment(), FileCatalogue(), profiles)
    looked = HostEnvironment(host.env, host.places.home)
    chosen = names or [name for name in profiles if find_agent(profiles[name], looked)]
    rows: list[dict[str, Any]] = []
    fine = True
    for number, name in enumerate(chosen, 1):
        _progress(f"trying {profiles[name].title} ({number} of {len(chosen)}) …")
        try:
            trial = try_agent(name, host)
        except (KeyholeError, OSError) as error:
            fine = False
            rows.append({"id": name, "held": False, "error": str(error)})
            shown = [f"{paint('fails ', 'red')} {name}  {visible(str(error))}"]
        else:
            fine = fine and trial.answered and not trial.drifted
            rows.append(_as_json(trial))
            shown = list(_lines(trial))
        finally:
            _progress("")
        if not as_json:
            print("\n".join(shown), flush=True)
    if as_json:
        print_json(rows)
    elif not chosen:
        print("no agent is installed; `keyhole agents` lists those that have a profile")
    elif fine:
        print("each agent answers, and asks for nothing that its files do not name")
    else:
        print("`keyhole doctor --agents --json` has every request, for a report")
    return EXIT_OK if fine else EXIT_DENIED


def _lines(trial: AgentTrial) -> Iterable[str]:
    if not trial.answered:
        said = f": {visible(trial.said)}" if trial.said else ""
        yield f"{paint('fails ', 'red')} {trial.name}  does not answer{said}"
    else:
        mark = paint("drifts", "yellow") if trial.drifted else paint("holds ", "green")
        hosts = {each.host for each in trial.requests if each.allowed}
        count = sum(each.allowed for each in trial.requests)
        yield (
            f"{mark} {trial.name}  answers by {trial.service}, {trial.seconds:.0f} s; "
            f"{count} different request{'' if count == 1 else 's'} to {', '.join(sorted(hosts))}"
        )
    for each in trial.drifted:
        yield (
            f"       asks for {visible(each.shown)}, which neither its profile nor the service "
            f"{trial.service} names"
        )
    for host, protocols in trial.protocols:
        offered = visible(", ".join(protocols)) or "no protocol"
        yield paint(f"       offers {offered} to {visible(host)}", "dim")
    if trial.protocols:
        ways = ", ".join(trial.certificates) or "none of the variables that were tried"
        yield paint(f"       trusts certificates by {ways}", "dim")
    else:
        yield paint("       its handshake was not seen: it does not pass a tunnel", "dim")


def _as_json(trial: AgentTrial) -> dict[str, Any]:
    return {
        "id": trial.name,
        "held": trial.answered and not trial.drifted,
        "title": trial.title,
        "program": trial.program,
        "service": trial.service,
        "answered": trial.answered,
        "seconds": round(trial.seconds, 1),
        "said": trial.said,
        "requests": [
            {
                "host": each.host,
                "method": each.method,
                "path": each.path,
                "allowed": each.allowed,
                "known": each.known,
            }
            for each in trial.requests
        ],
        "protocols": {host: list(offered) for host, offered in trial.protocols},
        "certificates": list(trial.certificates),
        "drifted": [each.shown for each in trial.drifted],
    }


def _progress(line: str) -> None:
    """Show a line on a terminal in place of the last; nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
