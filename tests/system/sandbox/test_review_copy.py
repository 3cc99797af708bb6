"""Changes held for review where the system refuses overlayfs: the view is a copy."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from tests.rigs.sandbox.projects import line_of
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.sandbox.projects import Project

pytestmark = pytest.mark.outside

REFUSED = {"KEYHOLE_UNSAFE_FAULT": "refused:overlay"}
TOKEN = "ghp_" + "q7RtZ2mW9xKc4VbN8sLd1FhJ6pGy3TaE5uXo"


def test_without_overlayfs_changes_are_held_in_a_copy_and_applied(
    new_project: Callable[..., Project],
) -> None:
    """I1, I11: masks stay, and the person's files change by `apply` alone. Control: the mount of a
    run that is not refused an overlay."""
    project = new_project('[sandbox]\nchanges = "review"\n')
    project.write("a", "one\n")
    project.write("d/e", "two\n")
    project.write(".env", f"TOKEN={TOKEN}\n")
    assert "overlay" in project.shell("grep $PWD /proc/self/mounts").out
    script = "cat .env a; echo more >> a; rm -r d; mkdir n; echo new > n/x; echo x > .envrc"
    ran = project.shell(f"{script}; grep -c overlay /proc/self/mounts", env=REFUSED)
    assert ran.lines == ["one", "0"], ran
    assert "6 changes held for review" in ran.err
    assert (project.directory / "a").read_text() == "one\n"
    copies = [*project.home.glob("state/keyhole/changes/*/*/copy/.env")]
    assert [path.read_text() for path in copies] == [""]
    shown = project("changes")
    assert "+more\n" in shown.out
    assert "-two\n" in shown.out
    again = project.shell("cat a n/x; ls d", env=REFUSED)
    assert again.lines == ["one", "more", "new"], again
    said = project("apply")
    assert (said.code, "applied 5 changes" in said.out) == (1, True), said
    assert (project.directory / "a").read_text() == "one\nmore\n"
    assert not (project.directory / "d").exists()
    assert not (project.directory / ".envrc").exists()
    assert project("undo").code == 0
    assert (project.directory / "d/e").read_text() == "two\n"
    # The other way goes on with the same changes.
    assert project.shell("cat a n/x; echo more >> n/x").lines == ["one", "more", "new"]
    assert project("discard").code == 0
    acts = [e for e in project.events() if e["kind"] == "changes"]
    assert [e["reason"] for e in acts] == ["applied", "undone", "discarded"]
    assert acts[0]["details"]["changes"] == 5


def test_a_killed_run_leaves_its_copy_to_the_next_command(
    new_project: Callable[..., Project],
) -> None:
    project = new_project('[sandbox]\nchanges = "review"\n')
    project.write("a", "one\n")
    script = "echo inside > a; echo ready; exec sleep 60"
    with project.running("sh", "-c", script, env=REFUSED) as process:
        assert line_of(process.stdout) == "ready"
        assert "still runs on a copy" in project("changes").err
        assert project("apply").code == 2
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
    shown = json.loads(project("changes", "--json").out)
    assert [each["change"] for each in shown] == ["changed"]
    assert project("apply").code == 0
    assert (project.directory / "a").read_text() == "inside\n"


def test_a_directory_closed_by_half_blocks_no_verb_and_no_run(
    new_project: Callable[..., Project],
) -> None:
    """Attack: `chmod 400` inside. Control: the file beside it. The names in the log are whole."""
    project = new_project('[sandbox]\nchanges = "review"\n')
    project.write("d/e", "one\n")
    assert project("changes").out == "no changes are held for review\n"
    assert project("changes", "--json").out == "[]\n"
    ran = project.shell("echo more >> d/e; echo x > 'f, and 9 more'; chmod 400 d", env=REFUSED)
    assert "2 changes held for review" in ran.err, ran
    assert "+more\n" in project("changes").out
    assert project.shell("cat d/e", env=REFUSED).lines == ["one", "more"]
    assert project("apply").code == 0
    assert (project.directory / "d/e").read_text() == "one\nmore\n"
    applied = next(e for e in project.events() if e["reason"] == "applied")["details"]
    assert (sorted(json.loads(applied["paths"])), applied["unnamed"]) == (
        ["d/e", "f, and 9 more"],
        0,
    )
    assert project("discard").out == "discarded every change\n"
