"""A learning run in a container, the policy that is made of it, and its replay."""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING

from tests.rigs.gateway.origins import Origin, Service, tls_for
from tests.rigs.gateway.talk import ok

if TYPE_CHECKING:
    import trustme

    from tests.rigs.sandbox.projects import Project

KEY = "k3y-0123456789abcdefghijklm"
SCRIPT = """
curl -sS --max-time 20 --cacert ca.pem https://open.example/page; echo
curl -sS --max-time 20 -o /dev/null -w '%{http_code}\\n' https://web.example/
curl -sS --max-time 5 http://169.254.169.254/ 2>/dev/null || echo closed
curl -sS --max-time 5 https://open.example:8443/ 2>/dev/null || echo closed
"""


def learn_in_container(project: Project, authority: trustme.CA) -> None:
    """I1, I3: the same rules as without a container. Before and after, what is unnamed is closed;
    in the run it is open at the web's ports, services have no credential, and no address that the
    program chose is reached."""
    service = Service(lambda message: ok(f"hello {message.target}".encode()))
    with contextlib.closing(
        Origin(service, tls_for(authority, "open.example", "web.example"))
    ) as origin:
        text = (project.directory / "keyhole.toml").read_text().removeprefix("version = 1\n")
        project.policy(f"""{text}
[services.web]
hosts  = ["web.example"]
allow  = ["GET /**"]
secret = "file:~/key"
inject = {{ header = "X-Key", value = "{{secret}}" }}
[upstream]
ca_file = "~/ca.pem"
connect = {{ "open.example:443" = "{origin.address}", "web.example:443" = "{origin.address}" }}
""")
        project.write("ca.pem", authority.cert_pem.bytes().decode())
        for name, data in (("ca.pem", authority.cert_pem.bytes()), ("key", KEY.encode())):
            (project.home / name).write_bytes(data)
            (project.home / name).chmod(0o600)
            project.person.own(project.home / name)
        before = project.shell(SCRIPT)
        assert "hello" not in before.out, before
        assert KEY.encode() in service.seen[-1].head  # the control: it has one otherwise
        refused = project("run", "--learn", "--", "true")
        assert (refused.code, "no terminal to ask on" in refused.err) == (125, True)
        done = project.shell(SCRIPT, flags=("--unsafe-learn",))
        assert "LEARNING RUN" in done.err
        assert done.lines == ["hello /page", "200", "closed", "closed"], done
        assert KEY.encode() not in service.seen[-1].head
        found = re.search(r"`keyhole learn ([0-9a-f]+)`", done.err)
        assert found, done.err
        rows = json.loads(project("learn", found[1], "--json").out)
        assert "egress.allow open.example" in {row["id"] for row in rows}
        take = ("--take", "egress.allow open.example", "--yes")
        assert project("learn", found[1], "--save", *take).code == 0
        again = project("run", "--", "sh", "-c", SCRIPT)
        assert again.lines[0] == "hello /page", again
        assert project("replay", "--session", found[1]).code == 0  # all that was used passes
