"""`keyhole doctor`: proves on this host that each wall stands, and which clients trust the CA.

With `--agents` it tries the installed agents instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.proofs.doctor import CLIENTS, DoctorResult, examine_engine, examine_host
from keyhole.app.proofs.mcp_check import check_servers
from keyhole.cli import doctor_agents
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_DENIED, EXIT_OK
from keyhole.cli.flags import add_json_flag, add_runtime_flags, check_image
from keyhole.cli.login_access import found_policy
from keyhole.cli.paint import paint, print_json
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.host.host_environment import HostEnvironment
from keyhole.model.errors import KeyholeError
from keyhole.model.text import visible

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runtime_flags(parser)
    parser.add_argument(
        "--agents",
        nargs="*",
        metavar="NAME",
        help="run these agents, or all that are installed, against a trap on this host, and say "
        "what they ask for that their profile and service do not name",
    )
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Run the proofs, and print a row for each."""
    contained = options.runtime != "bwrap"
    if options.agents is not None:
        if contained:
            raise CliError("--agents tries the programs of this host: leave --runtime out")
        return doctor_agents.run(options.agents, as_json=bool(getattr(options, "json", False)))
    check_image(options.image, contained=contained)
    if contained:
        image = options.image or ""
        findings = examine_engine(find_host_paths(), environment(), options.runtime, image)
    else:
        findings = examine_host(find_host_paths(), environment()) + _servers()
    failing = [finding for finding in findings if finding.vital and not finding.held]
    code = EXIT_DENIED if failing else EXIT_OK
    if options.json:
        print_json(
            [
                {
                    "id": f.id,
                    "held": f.held,
                    "seen": f.seen,
                    "control": f.control,
                    "advice": f.advice,
                    "fix": f.fix,
                }
                for f in findings
            ]
        )
        return code
    width = max(len(finding.id) for finding in findings)
    for finding in findings:
        mark = _mark(finding)
        control = paint(f"  {visible(finding.control)}", "dim") if finding.control else ""
        print(f"{mark} {finding.id.ljust(width)}  {visible(finding.seen)}{control}")
        if finding.advice:
            print(f"       {visible(finding.advice)}")
    print(_verdict(failing))
    print(_next([finding.fix for finding in failing if finding.fix], held=not failing))
    return code


def _servers() -> list[DoctorResult]:
    """The MCP servers that agents are configured with, against the policy here if there is one."""
    places = find_host_paths()
    host = HostEnvironment(environment(), places.home)
    try:
        file = found_policy(None, places)
    except KeyholeError:
        file = None
    return check_servers(host, Path.cwd(), file.loaded.policy if file else None)


def _next(fixes: list[str], *, held: bool) -> str:
    """The next command to type."""
    if held:
        return "next, in a project: `keyhole init`, then `keyhole run -- CMD`"
    if fixes:
        lines = "".join(f"\n    {visible(fix)}" for fix in dict.fromkeys(fixes))
        return f"to mend it, type:{lines}\nthen `keyhole doctor` again"
    return "docs/troubleshooting.md has causes; `keyhole doctor --json` is for a report"


def _mark(finding: DoctorResult) -> str:
    if finding.held:
        return paint("holds ", "green")
    return paint("FAILS ", "red") if finding.vital else paint("warns ", "yellow")


def _verdict(failing: list[DoctorResult]) -> str:
    if not failing:
        return "every wall stands"
    if all(finding.id.startswith(CLIENTS) for finding in failing):
        return "every wall stands, but clients inside cannot use a service: see the rows above"
    return "a sandbox on this host does not hold: nothing runs"
