"""What the engine is asked to make: the holder and the sandbox, as it reads them. Pure.

What `entry.py` will assert inside is made here as well, from the same values.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from keyhole.model.value import dataclass
from keyhole.sandbox.bwrap import MEMORY_TREES
from keyhole.sandbox.containers import closure
from keyhole.sandbox.containers.entry import ENGINES, PLAIN, Config
from keyhole.sandbox.containers.holder import REGISTRATION
from keyhole.sandbox.containers.nature import AS_ROOT
from keyhole.sandbox.files.fileplan import (
    Bind,
    Entry,
    Kind,
    Refused,
    Seed,
    Symlink,
    Tmpfs,
    Volume,
    guarding,
)
from keyhole.sandbox.files.generated import NAMESERVER
from keyhole.sandbox.files.paths import is_below, is_within, parents
from keyhole.sandbox.launch import Bounds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keyhole.sandbox.containers.nature import Nature
    from keyhole.sandbox.launch import Launch

LABEL, SESSION_LABEL, AT_LABEL = "keyhole", "keyhole.session", "keyhole.at"
"""On everything that Keyhole makes in an engine: what it is, and, for a container, of which session
and whose: the directory of whoever made it."""

CONFIG = "/etc/keyhole/entry"
"""Where `entry.py` finds what to assert."""

ENTRY = (*closure.words("keyhole.sandbox.containers.entry", CONFIG),)
"""What every process of a sandbox begins as."""

IMAGE, OWN_IMAGE = "keyhole-holder", "keyhole-own"
"""The holder's, and those that are made of this host's programs."""
_ERRAND = "/volume"
"""Where one is that a program of ours sees to."""
HOSTNAME = "keyhole"

_HOLDER_CAPABILITIES = ("NET_ADMIN", "NET_BIND_SERVICE", "SETUID", "SETGID", "SETPCAP")
"""To make the door, and then to give all of them up."""
_HOLDER_BYTES = 128 << 20
_HOLDER_PROCESSES = 8

_SYSCTLS = {
    # Engines turn it off; with it, what means an address of IPv6 is refused and told.
    "net.ipv6.conf.all.disable_ipv6": "0",
    # Engines let everybody make sockets of ICMP; here nobody can.
    "net.ipv4.ping_group_range": "1 0",
}

_WRITABLE = (*MEMORY_TREES, ("/run", 256 << 20), ("/var/tmp", 1 << 30))  # noqa: S108 - inside
_OF_THE_LOADER = ("LD_", "GLIBC_TUNABLES")

GUARDED = (closure.TREE, "/etc/keyhole")
"""What the first process is, and what it is told."""


@dataclass(frozen=True, slots=True)
class Box:
    """What a sandbox's container is made from."""

    launch: Launch
    session: str
    holder: str
    """The holder's id."""
    image: str
    """The image's id."""
    volumes: tuple[str, ...]
    """Where the image wants volumes; the sandbox has memory there."""
    kit: str
    """The volume with our own programs."""
    profile: str
    """The filter, as the engine wants to be told."""
    at: str
    """The directory of whoever makes it."""
    owns_memory: bool = True
    """Whether the engine takes a number for whose a tree in memory is; Podman knows only a letter
    that means the container's user."""
    nature: Nature = AS_ROOT


def labels(what: str, session: str = "", at: str = "") -> dict[str, str]:
    """What we mark everything with."""
    return {LABEL: what, SESSION_LABEL: session, AT_LABEL: at}


def holder(
    image: str,
    session: str,
    at: str,
    registration: str,
    kit: str,
    profile: str,
    nature: Nature = AS_ROOT,
) -> dict[str, Any]:
    """The holder's container, before anything of the sandbox exists."""
    return {
        "Image": image,
        "Entrypoint": closure.words(
            "keyhole.sandbox.containers.holder", REGISTRATION, *closure.LOADED, closure.NFT
        ),
        "User": "0:0",
        "Hostname": HOSTNAME,
        # No network at all, rather than the engine's own kind of none: that one is made by a hook,
        # a second start of the whole engine, which takes as long as the rest of the holder does.
        "NetworkDisabled": True,
        "Labels": labels("holder", session, at),
        "HostConfig": {
            "NetworkMode": "none",
            "Dns": [NAMESERVER],
            "CapDrop": ["ALL"],
            "CapAdd": list(_HOLDER_CAPABILITIES),
            # Ours, which takes no time: to compile its own, an engine takes a tenth of a start.
            "SecurityOpt": ["no-new-privileges:true", f"seccomp={profile}"],
            "IpcMode": "none",
            "ReadonlyRootfs": True,
            "UsernsMode": users(nature),
            **_bounds(nature, Bounds(_HOLDER_PROCESSES, _HOLDER_BYTES)),
            "AutoRemove": True,
            "LogConfig": {"Type": "none"},
            "Sysctls": _SYSCTLS,
            "Mounts": [
                _mount(registration, REGISTRATION, read_only=False),
                # The first holder that mounts it fills it from the image.
                _volume(kit),
            ],
        },
    }


def filler(image: str, kit: str) -> dict[str, Any]:
    """A container that is never started: by being made it has the engine fill the volume."""
    return {
        "Image": image,
        "Entrypoint": ["/never-started"],
        "Labels": labels("filler"),
        "HostConfig": {
            "NetworkMode": "none",
            "CapDrop": ["ALL"],
            "Mounts": [_volume(kit)],
        },
    }


def owner(
    image: str, kit: str, volume: str, who: tuple[int, int], nature: Nature = AS_ROOT
) -> dict[str, Any]:
    """What gives a new volume to the sandbox's user, and ends: engines make them root's."""
    words = closure.words("keyhole.sandbox.containers.owner", _ERRAND, *map(str, who))
    asked = _errand(image, kit, volume, words, nature)
    asked["HostConfig"]["CapAdd"] = ["CHOWN"]
    return asked | {"User": "0:0"}


def tidier(
    image: str,
    kit: str,
    volume: str,
    who: tuple[int, int],
    places: Sequence[str],
    nature: Nature = AS_ROOT,
) -> dict[str, Any]:
    """What moves aside, as the sandbox's user, all that would lead a mount in it elsewhere."""
    words = closure.words("keyhole.sandbox.containers.tidy", _ERRAND, *places)
    return _errand(image, kit, volume, words, nature) | {"User": f"{who[0]}:{who[1]}"}


def _errand(image: str, kit: str, volume: str, words: list[str], nature: Nature) -> dict[str, Any]:
    """A program of ours at a volume, while no sandbox has it."""
    return {
        "Image": image,
        "Entrypoint": words,
        "Labels": labels("errand"),
        "HostConfig": {
            "NetworkMode": "none",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "ReadonlyRootfs": True,
            "UsernsMode": users(nature),
            **_bounds(nature, Bounds(_HOLDER_PROCESSES, _HOLDER_BYTES)),
            "LogConfig": {"Type": "none"},
            "Mounts": [_volume(kit) | {"ReadOnly": True}, _kept(volume, _ERRAND)],
        },
    }


def sandbox(box: Box, sources: Mapping[int, str], config: str) -> dict[str, Any]:
    """The sandbox's container; `sources` are by the number of the entry, `config` is a file."""
    launch = box.launch
    trees, binds = _memory(box), []
    for number, entry in visible(launch.files):
        if isinstance(entry, Tmpfs):
            continue
        if isinstance(entry, Volume):
            binds.append(_kept(entry.name, entry.target))
            continue
        writable = isinstance(entry, Bind) and entry.writable
        binds.append(_mount(sources[number], entry.target, read_only=not writable))
    kit = _volume(box.kit) | {"ReadOnly": True}
    return {
        "Image": box.image,
        "Entrypoint": list(ENTRY),
        "Cmd": [],
        "User": f"{launch.uid}:{launch.gid}",
        "WorkingDir": "/",
        "Env": [f"{name}={value}" for name, value in _around(launch.environment).items()],
        "Labels": labels("sandbox", box.session, box.at),
        "Tty": launch.interactive,
        "OpenStdin": True,
        "StdinOnce": not launch.lasting,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "StopSignal": "SIGTERM",
        "HostConfig": {
            # The door's network, and the holder's process numbers: it ends, all here end.
            "NetworkMode": f"container:{box.holder}",
            "PidMode": f"container:{box.holder}",
            "IpcMode": "private",
            "UsernsMode": users(box.nature, box.holder),
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true", f"seccomp={box.profile}"],
            "ReadonlyRootfs": True,
            **_bounds(box.nature, launch.bounds),
            "LogConfig": {"Type": "none"},
            "Mounts": [
                kit,
                _mount(config, CONFIG, read_only=True),
                *binds,
                *({"Type": "tmpfs", "Target": path} for path in _volumes(box)),
            ],
            "Tmpfs": trees,
        },
    }


def assertions(
    box: Box,
    namespace: str,
    same: Mapping[str, tuple[int, int]],
    program: bytes,
    owners: Mapping[str, int] | None = None,
) -> Config:
    """What the first process inside asserts; `same` and `owners` are by target."""
    launch = box.launch
    entries = [entry for _, entry in visible(launch.files)]
    fixed = [e.target for e in entries if _is_fixed(e)]
    guarded = guarding(entries)
    return Config(
        namespace=namespace,
        command=launch.command,
        directory=launch.directory,
        environment=launch.environment | {"PWD": launch.directory},
        uid=launch.uid,
        gid=launch.gid,
        mounts=guarded,
        linked=tuple(
            path
            for path in (
                closure.TREE,
                CONFIG,
                *(e.target for e in entries),
                *_memory(box),
                *_volumes(box),
            )
            if path not in guarded and not path.startswith("/dev/")
        ),
        read_only=("/", closure.TREE, CONFIG, *fixed),
        same=dict(same),
        seeds=tuple((s.target, s.content, s.mode) for s in launch.files if isinstance(s, Seed)),
        program=program,
        open_files=launch.bounds.open_files,
        memory=launch.bounds.memory,
        owned=tuple(path for path, uid in (owners or {}).items() if uid == launch.uid),
        processes=launch.bounds.processes if box.nature.counts_by_user else 0,
        trees=tuple(e.target for e in entries if isinstance(e, Bind) and e.kind is Kind.DIR),
    )


def visible(entries: Sequence[Entry]) -> list[tuple[int, Entry]]:
    """What is still seen when all are mounted in order, by number: an engine mounts by depth.

    A later entry covers what lies at its place and below; were that not left out, an engine would
    mount it on top. Seeds are no mounts.
    """
    found: list[tuple[int, Entry]] = []
    for number, entry in enumerate(entries):
        if isinstance(entry, Symlink):
            raise Refused(f"{entry.target} would be a link, which no engine makes")
        if isinstance(entry, Seed):
            continue
        found = [(n, e) for n, e in found if not is_within(e.target, entry.target)]
        found.append((number, entry))
    return found


def points(entries: Sequence[Entry], volumes: Sequence[str]) -> tuple[str, ...]:
    """Every place of an image where an engine mounts, but for those in what it mounts itself."""
    own = [entry.target for _, entry in visible(entries)]
    wanted = map(_normal, volumes)
    found = {closure.TREE, CONFIG, *own, *(path for path, _ in _WRITABLE), *wanted} - {"/"}
    there = (*found, *ENGINES)
    return tuple(p for p in sorted(found) if not any(is_below(p, other) for other in there))


def refuse_led(entries: Sequence[Entry], volumes: Sequence[str], links: Mapping[str, str]) -> None:
    """Refused when an image has something mounted over our own programs (I2), be it by links.

    `volumes` are the image's; `links` are those on the way to `points`, and where each leads. What
    lies in a tree of the host or a volume is hostile, too, so none may lead there.
    """
    trees = [_led(e.target, links) for _, e in visible(entries) if isinstance(e, Bind | Volume)]
    for path, to in links.items():
        if _is_guarded(to) or any(is_within(to, tree) for tree in (*trees, *ENGINES)):
            raise Refused(f"the image has a link {path} to {to}: nothing can be mounted there")
    for path in map(_normal, volumes):
        if path != "/" and _is_guarded(path):
            raise Refused(f"the image wants a volume at {path}: Keyhole's own files are there")
        for tree in (e.target for _, e in visible(entries) if _is_hostile(e)):
            if is_below(path, tree):
                raise Refused(
                    f"the image wants a volume at {path}, in {tree}, where code that is not "
                    f"trusted could lead it elsewhere: have {tree} at another place"
                )


def _is_hostile(entry: Entry) -> bool:
    """Whether the sandbox, or another, decides what lies in it before it is mounted."""
    return isinstance(entry, Volume) or (isinstance(entry, Bind) and entry.writable)


def _led(path: str, links: Mapping[str, str]) -> str:
    """Where something is mounted in the end."""
    for way in (path, *parents(path)):
        if to := links.get(way):
            return posixpath.normpath(to + path.removeprefix(way))
    return path


def _normal(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


def _is_guarded(path: str) -> bool:
    return any(is_within(path, tree) or is_within(tree, path) for tree in GUARDED)


def users(nature: Nature, holder: str = "") -> str:
    """Which ids a container has. What the sandbox writes must be the person's (I11), so theirs is
    the same number inside and outside, whatever the engine does to others."""
    if nature.keeps_ids:
        # The network is the holder's user namespace's: whoever is in it is in that too.
        return f"container:{holder}" if holder else "keep-id"
    return "host" if nature.remaps else ""


def _bounds(nature: Nature, bounds: Bounds) -> dict[str, int]:
    """As far as the engine has the controllers: some refuse what they cannot do, some ignore it.

    More processors than there are bound nothing, and Docker refuses them.
    """
    found: dict[str, int] = {}
    if "pids" in nature.bounds:
        found["PidsLimit"] = bounds.processes
    if "memory" in nature.bounds:
        found |= {"Memory": bounds.memory, "MemorySwap": bounds.memory}
    if "cpu" in nature.bounds and bounds.cpus:
        found["NanoCpus"] = round(min(bounds.cpus, nature.cpus or bounds.cpus) * 1_000_000_000)
    return found


def _is_fixed(entry: Entry) -> bool:
    return not isinstance(entry, Tmpfs | Volume) and not (
        isinstance(entry, Bind) and entry.writable
    )


def _memory(box: Box) -> dict[str, str]:
    """The trees in memory, with their options; those of the plan belong to the sandbox's user."""
    launch = box.launch
    taken = [e for _, e in visible(launch.files)]
    own = {e.target for e in taken}
    common = "rw,exec,nosuid,nodev"
    found = {
        target: f"{common},size={size},mode=1777" for target, size in _WRITABLE if target not in own
    }
    if box.nature.rootless:
        # An engine that may not mount one of the sandbox's network shows the host's, interfaces
        # and all.
        found["/sys"] = "ro,noexec,nosuid,nodev,size=4k,mode=555"
    for entry in taken:
        if isinstance(entry, Tmpfs):
            whose = f"mode={entry.mode:o},uid={launch.uid},gid={launch.gid}"
            whose = whose if box.owns_memory else f"mode={entry.mode:o},U"
            found[entry.target] = f"{common},size={entry.size},{whose}"
    return found


def _volumes(box: Box) -> list[str]:
    taken = {e.target for _, e in visible(box.launch.files)} | set(_memory(box))
    return [path for path in box.volumes if path.rstrip("/") not in taken and path.strip("/")]


def _around(environment: Mapping[str, str]) -> dict[str, str]:
    """The container's own environment: what moves a loader reaches the command alone, not the
    process that asserts. Emptied rather than left out, since the image may have it too."""
    around = {
        name: "" if name.startswith(_OF_THE_LOADER) else value
        for name, value in environment.items()
    }
    return around | PLAIN


def _volume(kit: str) -> dict[str, Any]:
    return {
        "Type": "volume",
        "Source": kit,
        "Target": closure.TREE,
        "VolumeOptions": {"Labels": {LABEL: "kit"}},
    }


def _kept(name: str, target: str) -> dict[str, Any]:
    """A volume that is nobody's copy: what the image has there is not put in it."""
    options = {"NoCopy": True}
    return {"Type": "volume", "Source": name, "Target": target, "VolumeOptions": options}


def _mount(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": source,
        "Target": target,
        "ReadOnly": read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }
