"""The engine's requests for the holder and the sandbox. Pure.

The assertions of `entrypoint.py` are made here as well, from the same values.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.model.errors import Refused
from keyhole.sandbox.containers import holder_image
from keyhole.sandbox.containers.engine_traits import AS_ROOT
from keyhole.sandbox.containers.entrypoint import ENGINES, PLAIN, EntrypointConfig
from keyhole.sandbox.containers.holder import PORTS, REGISTRATION
from keyhole.sandbox.files.generated_files import NAMESERVER
from keyhole.sandbox.files.mount_plan import (
    Bind,
    Entry,
    MountKind,
    SeedFile,
    Symlink,
    Tmpfs,
    Volume,
    guarding_targets,
)
from keyhole.sandbox.files.paths import is_below, is_within, parents
from keyhole.sandbox.launch import MEMORY_TREES, ResourceLimits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keyhole.sandbox.containers.engine_traits import EngineTraits
    from keyhole.sandbox.launch import Launch

LABEL, SESSION_LABEL, AT_LABEL = "keyhole", "keyhole.session", "keyhole.at"
"""Labels on everything that Keyhole makes in an engine: its role and, for a container, its session
and the directory of the run that made it."""

CONFIG = "/etc/keyhole/entry"
"""The file with the assertions of `entrypoint.py`."""

ENTRY = (*holder_image.program_command("keyhole.sandbox.containers.entrypoint", CONFIG),)
"""The command by which every process of a sandbox starts."""

IMAGE, OWN_IMAGE = "keyhole-holder", "keyhole-own"
"""The names of the holder's image, and of images made of this host's programs."""
_VOLUME = "/volume"
"""The mount point of a volume, for one of our own programs."""
HOSTNAME = "keyhole"

_HOLDER_CAPABILITIES = ("NET_ADMIN", "NET_BIND_SERVICE", "SETUID", "SETGID", "SETPCAP")
"""The holder needs these to make the door, and then gives them up."""
_HOLDER_BYTES = 128 << 20
_HOLDER_PROCESSES = 8

_SYSCTLS = {
    # Engines turn IPv6 off; with it on, connections to IPv6 addresses are refused and reported.
    "net.ipv6.conf.all.disable_ipv6": "0",
    # Engines let every user make ICMP sockets; this range contains no user.
    "net.ipv4.ping_group_range": "1 0",
}

_WRITABLE = (*MEMORY_TREES, ("/run", 256 << 20), ("/var/tmp", 1 << 30))  # noqa: S108 - inside
_OF_THE_LOADER = ("LD_", "GLIBC_TUNABLES")

GUARDED = (holder_image.TREE, "/etc/keyhole")
"""Trees of ours over which no image may have anything mounted."""


class ContainerSpec(Struct, frozen=True):
    """The values that a sandbox's container is made from."""

    launch: Launch
    session: str
    holder: str
    """The holder's id."""
    image: str
    """The image's id."""
    volumes: tuple[str, ...]
    """The image's declared volumes; the sandbox has a tmpfs at each."""
    kit: str
    """The volume with our own programs."""
    profile: str
    """The filter, in the engine's format."""
    at: str
    """The directory of the run that makes it."""
    owns_memory: bool = True
    """Whether the engine accepts a number as the owner of a tmpfs; Podman accepts only a letter
    that means the container's user."""
    traits: EngineTraits = AS_ROOT


def labels(what: str, session: str = "", at: str = "") -> dict[str, str]:
    """The labels of everything that we create."""
    return {LABEL: what, SESSION_LABEL: session, AT_LABEL: at}


def holder_spec(
    image: str,
    session: str,
    at: str,
    registration: str,
    kit: str,
    profile: str,
    traits: EngineTraits = AS_ROOT,
    ports: str = "",
) -> dict[str, Any]:
    """The request for the holder's container. Nothing of the sandbox exists yet."""
    return {
        "Image": image,
        "Entrypoint": holder_image.program_command(
            "keyhole.sandbox.containers.holder",
            REGISTRATION,
            *([f"{PORTS}{ports}"] if ports else []),
            *holder_image.LOADED,
            holder_image.NFT,
        ),
        "User": "0:0",
        "Hostname": HOSTNAME,
        # No network at all, rather than the engine's network `none`: a hook sets that up by
        # starting the whole engine a second time, which takes as long as the rest of the holder's
        # start.
        "NetworkDisabled": True,
        "Labels": labels("holder", session, at),
        "HostConfig": {
            "NetworkMode": "none",
            "Dns": [NAMESERVER],
            "CapDrop": ["ALL"],
            "CapAdd": list(_HOLDER_CAPABILITIES),
            # Our filter, which is ready: an engine takes a tenth of a start to compile its own.
            "SecurityOpt": ["no-new-privileges:true", f"seccomp={profile}"],
            "IpcMode": "none",
            "ReadonlyRootfs": True,
            "UsernsMode": container_ids(traits),
            **_bounds(traits, ResourceLimits(_HOLDER_PROCESSES, _HOLDER_BYTES)),
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


def filler_spec(image: str, kit: str) -> dict[str, Any]:
    """A container that is never started: the engine fills the volume when the container is
    created."""
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


def chown_spec(
    image: str, kit: str, volume: str, who: tuple[int, int], traits: EngineTraits = AS_ROOT
) -> dict[str, Any]:
    """A container that gives a new volume to the sandbox's user, and ends: engines create them as
    root's."""
    words = holder_image.program_command(
        "keyhole.sandbox.containers.chown_volume", _VOLUME, *map(str, who)
    )
    asked = _volume_program(image, kit, volume, words, traits)
    asked["HostConfig"]["CapAdd"] = ["CHOWN"]
    return asked | {"User": "0:0"}


def tidy_spec(
    image: str,
    kit: str,
    volume: str,
    who: tuple[int, int],
    places: Sequence[str],
    traits: EngineTraits = AS_ROOT,
) -> dict[str, Any]:
    """A container that moves aside, as the sandbox's user, everything in the volume that would
    redirect a mount."""
    words = holder_image.program_command("keyhole.sandbox.containers.tidy_volume", _VOLUME, *places)
    return _volume_program(image, kit, volume, words, traits) | {"User": f"{who[0]}:{who[1]}"}


def _volume_program(
    image: str, kit: str, volume: str, words: list[str], traits: EngineTraits
) -> dict[str, Any]:
    """One of our own programs with a volume, while no sandbox uses it."""
    return {
        "Image": image,
        "Entrypoint": words,
        "Labels": labels("errand"),
        "HostConfig": {
            "NetworkMode": "none",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "ReadonlyRootfs": True,
            "UsernsMode": container_ids(traits),
            **_bounds(traits, ResourceLimits(_HOLDER_PROCESSES, _HOLDER_BYTES)),
            "LogConfig": {"Type": "none"},
            "Mounts": [_volume(kit) | {"ReadOnly": True}, _kept(volume, _VOLUME)],
        },
    }


def sandbox_spec(box: ContainerSpec, sources: Mapping[int, str], config: str) -> dict[str, Any]:
    """The request for the sandbox's container. `sources` has paths by the entry's number; `config`
    is a file."""
    launch = box.launch
    trees, binds = _memory(box), []
    for number, entry in visible_entries(launch.files):
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
            # The door's network, and the holder's process namespace: when the holder ends, all here
            # end.
            "NetworkMode": f"container:{box.holder}",
            "PidMode": f"container:{box.holder}",
            "IpcMode": "private",
            "UsernsMode": container_ids(box.traits, box.holder),
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true", f"seccomp={box.profile}"],
            "ReadonlyRootfs": True,
            **_bounds(box.traits, launch.bounds),
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
    box: ContainerSpec,
    namespace: str,
    same: Mapping[str, tuple[int, int]],
    program: bytes,
    owners: Mapping[str, int] | None = None,
) -> EntrypointConfig:
    """The assertions for the first process inside; `same` and `owners` are by target."""
    launch = box.launch
    entries = [entry for _, entry in visible_entries(launch.files)]
    fixed = [e.target for e in entries if _is_fixed(e)]
    guarded = guarding_targets(entries)
    return EntrypointConfig(
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
                holder_image.TREE,
                CONFIG,
                *(e.target for e in entries),
                *_memory(box),
                *_volumes(box),
            )
            if path not in guarded and not path.startswith("/dev/")
        ),
        read_only=("/", holder_image.TREE, CONFIG, *fixed),
        same=dict(same),
        seeds=tuple((s.target, s.content, s.mode) for s in launch.files if isinstance(s, SeedFile)),
        program=program,
        open_files=launch.bounds.open_files,
        memory=launch.bounds.memory,
        owned=tuple(path for path, uid in (owners or {}).items() if uid == launch.uid),
        processes=launch.bounds.processes if box.traits.counts_by_user else 0,
        trees=tuple(e.target for e in entries if isinstance(e, Bind) and e.kind is MountKind.DIR),
    )


def visible_entries(entries: Sequence[Entry]) -> list[tuple[int, Entry]]:
    """The entries that are still visible when all are mounted in order, with their numbers.

    An engine mounts by depth, not in order. A later entry covers everything at its place and below;
    if the covered entries were not left out, an engine would mount them on top. Seeds are not
    mounts.
    """
    found: list[tuple[int, Entry]] = []
    for number, entry in enumerate(entries):
        if isinstance(entry, Symlink):
            raise Refused(f"{entry.target} would be a link, which no engine makes")
        if not entry.target.isascii() and not _is_utf8(entry.target):
            # An engine reads JSON: it would mount the cover of a file somewhere else.
            raise Refused(
                f"{entry.target} is not UTF-8, which an engine's mounts must be",
                'rename it, or use `runtime = "bwrap"`',
            )
        if isinstance(entry, SeedFile):
            continue
        found = [(n, e) for n, e in found if not is_within(e.target, entry.target)]
        found.append((number, entry))
    return found


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def mount_points(entries: Sequence[Entry], volumes: Sequence[str]) -> tuple[str, ...]:
    """Every path of an image at which the engine mounts, except below another mount."""
    own = [entry.target for _, entry in visible_entries(entries)]
    wanted = map(_normal, volumes)
    found = {holder_image.TREE, CONFIG, *own, *(path for path, _ in _WRITABLE), *wanted} - {"/"}
    there = (*found, *ENGINES)
    return tuple(p for p in sorted(found) if not any(is_below(p, other) for other in there))


def refuse_covered_programs(
    entries: Sequence[Entry], volumes: Sequence[str], links: Mapping[str, str]
) -> None:
    """Refuse an image that would have something mounted over our programs (I2), also through links.

    `volumes` are the image's; `links` are those on the way to `points`, with their targets. No link
    may lead into a tree of the host or into a volume: its content is hostile too.
    """
    trees = [
        _led(e.target, links) for _, e in visible_entries(entries) if isinstance(e, Bind | Volume)
    ]
    for path, to in links.items():
        if _is_guarded(to) or any(is_within(to, tree) for tree in (*trees, *ENGINES)):
            raise Refused(f"the image has a link {path} to {to}: nothing can be mounted there")
    for path in map(_normal, volumes):
        if path != "/" and _is_guarded(path):
            raise Refused(f"the image wants a volume at {path}: Keyhole's own files are there")
        for tree in (e.target for _, e in visible_entries(entries) if _is_hostile(e)):
            if is_below(path, tree):
                raise Refused(
                    f"the image wants a volume at {path}, in {tree}, where code that is not "
                    f"trusted could lead it elsewhere: have {tree} at another place"
                )


def _is_hostile(entry: Entry) -> bool:
    """Whether the sandbox, or another one, controls the content before it is mounted."""
    return isinstance(entry, Volume) or (isinstance(entry, Bind) and entry.writable)


def _led(path: str, links: Mapping[str, str]) -> str:
    """The path at which something is mounted after links are followed."""
    for way in (path, *parents(path)):
        if to := links.get(way):
            return posixpath.normpath(to + path.removeprefix(way))
    return path


def _normal(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


def _is_guarded(path: str) -> bool:
    return any(is_within(path, tree) or is_within(tree, path) for tree in GUARDED)


def container_ids(traits: EngineTraits, holder: str = "") -> str:
    """The ids of a container. Files that the sandbox writes must belong to the user (I11), so the
    user's number is the same inside and outside, whatever the engine does to others."""
    if traits.keeps_ids:
        # The network belongs to the holder's user namespace, so the sandbox must be in that one
        # too.
        return f"container:{holder}" if holder else "keep-id"
    return "host" if traits.remaps else ""


def _bounds(traits: EngineTraits, bounds: ResourceLimits) -> dict[str, int]:
    """The limits for which the engine has a controller. Without one, some engines refuse the
    request and some ignore it.

    More processors than the host has bound nothing, and Docker refuses them.
    """
    found: dict[str, int] = {}
    if "pids" in traits.bounds:
        found["PidsLimit"] = bounds.processes
    if "memory" in traits.bounds:
        found |= {"Memory": bounds.memory, "MemorySwap": bounds.memory}
    if "cpu" in traits.bounds and bounds.cpus:
        found["NanoCpus"] = round(min(bounds.cpus, traits.cpus or bounds.cpus) * 1_000_000_000)
    return found


def _is_fixed(entry: Entry) -> bool:
    return not isinstance(entry, Tmpfs | Volume) and not (
        isinstance(entry, Bind) and entry.writable
    )


def _memory(box: ContainerSpec) -> dict[str, str]:
    """The tmpfs trees, with their options; those of the plan belong to the sandbox's user."""
    launch = box.launch
    taken = [e for _, e in visible_entries(launch.files)]
    own = {e.target for e in taken}
    common = "rw,exec,nosuid,nodev"
    found = {
        target: f"{common},size={size},mode=1777" for target, size in _WRITABLE if target not in own
    }
    if box.traits.rootless:
        # An engine that may not mount /sys for the sandbox's network shows the host's, with its
        # interfaces.
        found["/sys"] = "ro,noexec,nosuid,nodev,size=4k,mode=555"
    for entry in taken:
        if isinstance(entry, Tmpfs):
            whose = f"mode={entry.mode:o},uid={launch.uid},gid={launch.gid}"
            whose = whose if box.owns_memory else f"mode={entry.mode:o},U"
            found[entry.target] = f"{common},size={entry.size},{whose}"
    return found


def _volumes(box: ContainerSpec) -> list[str]:
    taken = {e.target for _, e in visible_entries(box.launch.files)} | set(_memory(box))
    return [path for path in box.volumes if path.rstrip("/") not in taken and path.strip("/")]


def _around(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the container itself. Variables that steer a loader are emptied here, and
    reach only the command, not the process that asserts the walls. Leaving them out would not do:
    the image may set them."""
    around = {
        name: "" if name.startswith(_OF_THE_LOADER) else value
        for name, value in environment.items()
    }
    return around | PLAIN


def _volume(kit: str) -> dict[str, Any]:
    return {
        "Type": "volume",
        "Source": kit,
        "Target": holder_image.TREE,
        "VolumeOptions": {"Labels": {LABEL: "kit"}},
    }


def _kept(name: str, target: str) -> dict[str, Any]:
    """A volume without a copy of the image's files at that path."""
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
