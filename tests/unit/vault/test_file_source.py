"""`file:`: a regular file of the user's alone, or one that an engine handed over (I1, I11)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from keyhole.model.errors import ResourceUnusable
from keyhole.system.symlinks import MAX_LINKS
from keyhole.vault.checked_open import open_regular
from keyhole.vault.custody import MAX_SIZE
from keyhole.vault.file_facts import FileFacts, objection
from keyhole.vault.interface import SecretUnavailable
from tests.rigs.vault.rig import VALUE, World, ref, told


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def refusal(world: World, text: str) -> str:
    with pytest.raises(SecretUnavailable) as error:
        world.vault().fetch(ref(text))
    assert text in str(error.value)
    assert VALUE not in told(error.value)
    return str(error.value)


def value(world: World, text: str) -> str:
    given = world.vault().fetch(ref(text))
    assert given.warning == ""
    return given.secret.reveal()


@pytest.mark.parametrize("path", ["home/.secrets/key", "project/deploy/key"])
def test_a_path_is_absolute_or_in_the_home_or_beside_the_policy(world: World, path: str) -> None:
    absolute = world.write(path)
    typed = path.replace("home/", "~/").replace("project/", "")
    assert value(world, f"file:{typed}") == VALUE
    assert value(world, f"file:{absolute}") == VALUE
    assert value(world, f"file:../{path}") == VALUE
    assert value(world, f"file:{absolute.parent}/./../{absolute.parent.name}//key") == VALUE


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_file_of_the_user_alone_is_read(world: World, mode: int) -> None:
    world.write("home/key", mode=mode)
    assert value(world, "file:~/key") == VALUE


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o644, 0o666])
def test_a_file_that_others_can_reach_is_refused_with_what_to_type(world: World, mode: int) -> None:
    path = world.write("home/a key", mode=mode)
    said = refusal(world, "file:~/a key")
    assert said.endswith(f"others can reach it (mode {mode:04o}): chmod 600 '{path}'")
    path.chmod(0o600)
    assert value(world, "file:~/a key") == VALUE


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("file:~/none", "no such file"),
        ("file:~/none/deeper", "no such file"),
        ("file:~/key/deeper", "not a directory"),
        ("file:~/", "not a regular file"),
        ("file:~/directory", "not a regular file"),
        ("file:/dev/zero", "not a regular file"),
        ("file:/dev/tty", "not a regular file"),
        ("file:~/" + "n" * 300, "file name too long"),
    ],
)
def test_what_is_no_file_is_refused(world: World, text: str, why: str) -> None:
    world.write("home/key")
    (world.home / "directory").mkdir()
    assert why in refusal(world, text)


def test_a_pipe_is_refused_without_waiting_for_a_writer_and_without_being_opened(
    world: World,
) -> None:
    """I9: and whoever writes there is not woken."""
    os.mkfifo(world.home / "pipe", 0o600)
    assert "not a regular file" in refusal(world, "file:~/pipe")
    with pytest.raises(OSError, match="No such device or address"):
        os.open(world.home / "pipe", os.O_WRONLY | os.O_NONBLOCK)


def test_a_socket_is_refused(world: World) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(world.home / "socket"))
        assert "not a regular file" in refusal(world, "file:~/socket")


def test_a_file_of_the_kernel_with_no_size_is_refused_by_its_content(world: World) -> None:
    """/proc/self/environ is a regular file of the user's with mode 0400."""
    assert "control" in refusal(world, f"file:/proc/{os.getpid()}/environ")


def test_too_large_a_file_is_not_read(world: World) -> None:
    """I9: whatever it says its size is."""
    world.write("home/big", "x" * (MAX_SIZE + 1))
    assert "larger than" in refusal(world, "file:~/big")
    world.write("home/big", "x" * MAX_SIZE)
    assert len(value(world, "file:~/big")) == MAX_SIZE


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "empty"),
        ("short", "shorter than 16"),
        (VALUE + "\nX-Evil: 1\r" + VALUE, "control"),
        (VALUE + "\x00", "control"),
        (b"\xff\xfe" + VALUE.encode(), "not UTF-8"),
        (VALUE + " ", "space"),
    ],
)
def test_a_file_whose_content_is_unusable_is_described_and_not_quoted(
    world: World, content: str | bytes, why: str
) -> None:
    """I8."""
    world.write("home/key", content)
    assert why in refusal(world, "file:~/key")


# ── links ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_link_is_followed_as_kubernetes_has_them(world: World) -> None:
    world.write("home/mount/..2026_07/token")
    (world.home / "mount/..data").symlink_to("..2026_07")
    (world.home / "mount/token").symlink_to("..data/token")
    (world.home / "absolute").symlink_to(world.home / "mount" / "token")
    assert value(world, "file:~/mount/token") == VALUE
    assert value(world, "file:~/absolute") == VALUE


def test_a_link_that_the_sandbox_could_have_left_is_refused(world: World) -> None:
    """I11: else a leftover makes any private file of the user's the secret of a service."""
    private = world.write("home/.ssh/id", VALUE)
    (world.project / "key").symlink_to(private)
    assert value(world, "file:key") == VALUE
    world.writable = (world.project,)
    assert "link in a tree that the sandbox can write" in refusal(world, "file:key")


@pytest.mark.parametrize("place", ["middle", "chain", "dots"])
def test_such_a_link_anywhere_on_the_way_is_refused(world: World, place: str) -> None:
    """I11: a directory that is a link, a link to a link, a way in and out again."""
    world.write("home/.ssh/id", VALUE)
    (world.project / "to").symlink_to(world.home / ".ssh")
    (world.project / "sub").mkdir()
    (world.home / "chain").symlink_to(world.project / "to")
    typed = {"middle": "to/id", "chain": "~/chain/id", "dots": "sub/../to/id"}[place]
    assert value(world, f"file:{typed}") == VALUE
    world.writable = (world.project,)
    assert "link in a tree" in refusal(world, f"file:{typed}")


def test_the_tree_is_known_by_what_it_is_and_not_by_its_name(world: World) -> None:
    """I11: the tree is given by a link, as a bind mount gives it by another path."""
    private = world.write("home/.ssh/id", VALUE)
    (world.project / "key").symlink_to(private)
    (world.root / "alias").symlink_to(world.project)
    world.writable = (world.root / "alias", world.root / "gone")
    assert "link in a tree" in refusal(world, "file:key")


def test_a_regular_file_in_such_a_tree_is_read_with_a_warning(world: World) -> None:
    world.write("project/key")
    world.writable = (world.project,)
    given = world.vault().fetch(ref("file:key"))
    assert given.secret.reveal() == VALUE
    assert "file:key lies in a tree that sandboxes can write" in given.warning


def test_what_was_judged_is_what_is_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """I11: the name leads elsewhere after the walk, and the walk's file is opened all the same."""
    path = world.write("home/key")
    other = world.write("home/other", "another-secret-of-the-user")
    inner = os.fstat
    swapped: list[Path] = []

    def swap(descriptor: int) -> os.stat_result:
        found = inner(descriptor)
        if found.st_ino == os.stat(path).st_ino and not swapped:
            swapped.append(path.rename(world.home / "moved"))
            path.symlink_to(other)
        return found

    monkeypatch.setattr("keyhole.vault.checked_open.os.fstat", swap)
    opened = open_regular(path, (world.project,))
    monkeypatch.undo()
    assert swapped
    assert os.read(opened.descriptor, 100).decode().strip() == VALUE
    os.close(opened.descriptor)
    assert path.read_text() == "another-secret-of-the-user"


def test_a_ring_of_links_ends(world: World) -> None:
    """I9."""
    (world.home / "a").symlink_to("b")
    (world.home / "b").symlink_to("a")
    assert "too many links" in refusal(world, "file:~/a")
    world.write("home/0")
    for number in range(1, MAX_LINKS + 2):
        (world.home / str(number)).symlink_to(str(number - 1))
    assert value(world, f"file:~/{MAX_LINKS}") == VALUE
    assert "too many links" in refusal(world, f"file:~/{MAX_LINKS + 1}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
def test_a_link_of_another_user_is_not_followed(world: World) -> None:
    """As in /tmp, where anyone can leave one; fs.protected_symlinks has the same rule."""
    world.write("home/key")
    link = world.root / "link"
    link.symlink_to(world.home / "key")
    assert value(world, f"file:{link}") == VALUE
    os.chown(link, 12345, 12345, follow_symlinks=False)
    assert "belongs to uid 12345" in refusal(world, f"file:{link}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_refused(world: World) -> None:
    os.chown(world.write("home/key"), 12345, 12345)
    assert "belongs to uid 12345, who can change it" in refusal(world, "file:~/key")


def test_nothing_stays_open(world: World) -> None:
    (world.home / "link").symlink_to("deep/key")
    world.write("home/deep/key")
    before = len(os.listdir("/proc/self/fd"))
    for text in ("~/link", "~/deep/key", "~/none", "/dev/null", "~/link/x"):
        try:
            world.vault().fetch(ref(f"file:{text}"))
        except SecretUnavailable:
            continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_open_regular_says_why_in_words(tmp_path: Path) -> None:
    with pytest.raises(ResourceUnusable, match="there is no such file"):
        open_regular(tmp_path / "none")


# ── files that an engine handed over ──────────────────────────────────────────────────────────────

USER = 1000


def facts(
    path: str, owner: int = 0, mode: int = 0o444, size: int = 40, read_only: bool = False
) -> FileFacts:
    return FileFacts(path, owner, mode, size, read_only)


@pytest.mark.parametrize(
    "handed",
    [
        facts("/run/secrets/token"),  # Docker, Podman
        facts("/run/secrets/token", mode=0o440),  # Kubernetes with fsGroup
        facts("/var/run/secrets/kubernetes.io/..2026/token", mode=0o644),
        facts("/run/credentials/keyhole.service/token", mode=0o440),  # systemd, with an ACL
        facts("/run/secrets/token", owner=501, mode=0o666, read_only=True),  # a Compose bind
    ],
)
def test_what_an_engine_handed_over_has_the_mode_that_the_engine_chose(handed: FileFacts) -> None:
    assert objection(handed, USER) is None


@pytest.mark.parametrize(
    ("left", "why"),
    [
        (facts("/run/secrets-of-mine/token"), "others can reach it"),
        (facts("/home/me/run/secrets/token"), "others can reach it"),
        (facts("/etc/token", read_only=True), "read-only: mount it below /run/secrets"),
        (facts("/nix/store/x-token", read_only=True), "others can reach it"),
        (facts("/run/secrets/token", mode=0o664), "others can reach it"),
        (facts("/run/secrets/token", owner=501), "belongs to uid 501"),
        (facts("/run/secrets/token", size=MAX_SIZE + 1), "larger than"),
        (facts("/home/other/token", owner=1001, mode=0o600), "belongs to uid 1001"),
    ],
)
def test_nothing_else_is_believed_on_these_terms(left: FileFacts, why: str) -> None:
    """The control: the place, and who could have written there, decide."""
    said = objection(left, USER)
    assert said is not None
    assert why in said


def test_a_path_in_a_refusal_cannot_move_the_cursor() -> None:
    """I8: and what is to be typed is one word to the shell."""
    said = objection(facts("/home/me/a\x1b[2J b; rm -rf x"), USER)
    assert said is not None
    assert said.endswith("chmod 600 '/home/me/a\\x1b[2J b; rm -rf x'")


MOUNTS = """
set -e
mount -t tmpfs none /run
mkdir -p /run/secrets/k8s /run/secrets/shared /run/credentials/keyhole.service
mount -t tmpfs none /run/secrets/k8s
cd /run/secrets/k8s
mkdir ..2026_01; printf %s "$VALUE" > ..2026_01/token
ln -s ..2026_01 ..data; ln -s ..data/token token; chmod 644 ..2026_01/token
mount -o remount,ro,bind /run/secrets/k8s
printf %s "$VALUE" > /run/secrets/docker; chmod 444 /run/secrets/docker
printf %s "$VALUE" > /run/secrets/loose; chmod 666 /run/secrets/loose
printf %s "$VALUE" > /run/credentials/keyhole.service/token
chmod 440 /run/credentials/keyhole.service/token
"""

READ = """
import sys
from pathlib import Path
from keyhole.vault.interface import SecretUnavailable
from tests.rigs.vault.rig import World, ref
world = World(Path(sys.argv[1]), env={"CREDENTIALS_DIRECTORY": "/run/credentials/keyhole.service"})
for text in sys.argv[2:]:
    try:
        print(world.vault().fetch(ref(text)).secret.reveal())
    except SecretUnavailable as error:
        print(error)
"""


def test_what_engines_mount_is_read_where_they_mount_it(tmp_path: Path) -> None:
    """Real mounts, in a mount namespace of the test's own; the loose file is the control."""
    places = ["/run/secrets/k8s/token", "/var/run/secrets/k8s/token", "/run/secrets/docker",
              "$CREDENTIALS_DIRECTORY/token", "/run/secrets/loose"]  # fmt: skip
    unshare = shutil.which("unshare")
    assert unshare
    done = subprocess.run(
        [unshare, "--map-root-user", "--mount", "sh", "-c",
         f'{MOUNTS}\ncd "$ROOT"; exec "$@"', "sh",
         sys.executable, "-c", READ, str(tmp_path), *(f"file:{place}" for place in places)],
        env={"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "VALUE": VALUE,
             "ROOT": str(Path(__file__).parents[3])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode and os.environ.get("CI") != "true" and "unshare" in done.stderr:
        pytest.skip("this host allows no user namespace")
    *given, loose = done.stdout.splitlines()
    assert given == [VALUE] * 4, done.stderr
    assert "others can reach it (mode 0666)" in loose


# ── systemd's credentials ─────────────────────────────────────────────────────────────────────────


def test_a_credential_of_systemd_is_named_as_in_a_unit(world: World) -> None:
    """A user's unit has them below its runtime directory, as files of the user's alone."""
    world.env["CREDENTIALS_DIRECTORY"] = str(world.root / "credentials" / "keyhole.service")
    world.write("credentials/keyhole.service/token", mode=0o400)
    assert value(world, "file:$CREDENTIALS_DIRECTORY/token") == VALUE
    assert "no such file" in refusal(world, "file:$CREDENTIALS_DIRECTORY/none")


@pytest.mark.parametrize("place", [None, "", "relative/credentials"])
def test_without_a_unit_there_is_no_credential(world: World, place: str | None) -> None:
    """I3: and no file of that name beside the policy is taken for it."""
    if place is not None:
        world.env["CREDENTIALS_DIRECTORY"] = place
    world.write("project/$CREDENTIALS_DIRECTORY/token")
    text = "file:$CREDENTIALS_DIRECTORY/token"
    assert "CREDENTIALS_DIRECTORY is not set" in refusal(world, text)
    assert world.vault().mark(ref(text)) is None


@pytest.mark.parametrize("name", ["", "/", "/..", "/.", "/../x", "/a/b", "//x"])
def test_a_credential_is_one_name(world: World, name: str) -> None:
    world.env["CREDENTIALS_DIRECTORY"] = str(world.root)
    world.write("x")
    assert "is one name" in refusal(world, f"file:$CREDENTIALS_DIRECTORY{name}")


def test_no_other_variable_is_looked_at(world: World) -> None:
    world.env["HOME"] = str(world.home)
    world.write("home/key")
    assert "no such file" in refusal(world, "file:$HOME/key")
    world.write("project/$HOME/key")
    assert value(world, "file:$HOME/key") == VALUE
