"""The CNI plugin: asks the node agent for a pod's door before the first container starts.

The node's runtime runs it for every pod, chained after the plugin that makes the pod's interface.
A pod that no policy selects passes without the agent being asked, so that a dead agent never stops
a node. A pod with the stamp that admission wrote gets a door, or does not start (I2).

It runs on nodes without Python, from the tree in which Keyhole carries its own interpreter.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys

from keyhole.sandbox.pods.away_network import away_path, drop_network

TYPE_CHECKING = False  # `typing` takes a third of the import time here
if TYPE_CHECKING:
    from typing import Any

STAMP = "keyhole.dev/policy"
"""The annotation that admission writes on the pods that a policy selects."""

ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
"""The capability by which a runtime hands over a pod's annotations."""

VERSIONS = ("0.3.1", "0.4.0", "1.0.0", "1.1.0")
SOCKET = "/run/keyhole/cni.sock"
ANSWER_SECONDS = 60.0
"""How long a pod's start waits for the agent; the kubelet tries again later."""

MAX_CONFIGURATION = 1 << 20
MAX_ANSWER = 1 << 16

_TRY_AGAIN_LATER = 11
"""CNI specification, error codes."""
_INVALID_ENVIRONMENT, _INVALID_CONFIGURATION = 4, 7


class _PluginError(Exception):
    """An error that the runtime shows, with its code in the specification."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def main() -> int:
    """Run by a container runtime: CNI_* variables and a configuration on standard input."""
    version = VERSIONS[-1]
    try:
        command = os.environ.get("CNI_COMMAND", "")
        if command == "VERSION":
            _print({"cniVersion": version, "supportedVersions": list(VERSIONS)})
            return 0
        configuration = _read_configuration()
        version = str(configuration.get("cniVersion", version))
        answer = _handle(command, configuration)
    except _PluginError as error:
        _print({"cniVersion": version, "code": error.code, "msg": f"keyhole: {error}"})
        return 1
    if answer is not None:
        _print(answer)
    return 0


def _read_configuration() -> dict[str, Any]:
    data = sys.stdin.buffer.read(MAX_CONFIGURATION + 1)
    try:
        found = json.loads(data) if len(data) <= MAX_CONFIGURATION else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _PluginError(_INVALID_CONFIGURATION, "the configuration is not a JSON object")
    return found


def _handle(command: str, configuration: dict[str, Any]) -> dict[str, Any] | None:
    place = str(configuration.get("socket", SOCKET))
    if command == "ADD":
        result = configuration.get("prevResult")
        if not isinstance(result, dict):
            raise _PluginError(_INVALID_CONFIGURATION, "it must follow another plugin")
        if is_stamped(configuration):
            _ask(place, _request(command))
        return result
    if command == "CHECK":
        if is_stamped(configuration):
            _ask(place, _request(command))
        return None
    if command == "DEL":
        # The pod is gone whatever the agent says, and the runtime repeats a DEL that fails.
        with contextlib.suppress(_PluginError):
            _ask(place, _request(command))
        # Its address is free now and may be given to another pod, even if no agent is there.
        with contextlib.suppress(ValueError):
            drop_network(away_path(os.environ.get("CNI_CONTAINERID", "")))
        return None
    if command in ("GC", "STATUS"):
        return None
    raise _PluginError(_INVALID_ENVIRONMENT, "CNI_COMMAND is not one of the specification's")


def is_stamped(configuration: dict[str, Any]) -> bool:
    """Whether admission stamped the pod. A runtime that hands over no annotations says nothing
    about any pod: then every pod is one that a policy may select."""
    given = configuration.get("runtimeConfig")
    annotations = given.get(ANNOTATIONS) if isinstance(given, dict) else None
    return not isinstance(annotations, dict) or STAMP in annotations


def _request(command: str) -> dict[str, Any]:
    """What the runtime says about the pod: this is the kubelet's word, not the pod's."""
    words = dict(
        pair.split("=", 1) for pair in os.environ.get("CNI_ARGS", "").split(";") if "=" in pair
    )
    return {
        "command": command,
        "container": os.environ.get("CNI_CONTAINERID", ""),
        "network": os.environ.get("CNI_NETNS", ""),
        "interface": os.environ.get("CNI_IFNAME", ""),
        "namespace": words.get("K8S_POD_NAMESPACE", ""),
        "name": words.get("K8S_POD_NAME", ""),
        "uid": words.get("K8S_POD_UID", ""),
    }


def _ask(place: str, request: dict[str, Any]) -> None:
    """Ask the agent, and wait until it has done it. Raises _PluginError."""
    try:
        with socket.socket(socket.AF_UNIX) as agent:
            agent.settimeout(ANSWER_SECONDS)
            agent.connect(place)
            agent.sendall(json.dumps(request).encode() + b"\n")
            agent.shutdown(socket.SHUT_WR)
            data = b""
            while len(data) <= MAX_ANSWER and (more := agent.recv(4096)):
                data += more
        answer = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise _PluginError(
            _TRY_AGAIN_LATER, f"the node agent does not answer ({error}); the pod stays closed"
        ) from None
    if not isinstance(answer, dict) or answer.get("done") is not True:
        why = answer.get("why", "") if isinstance(answer, dict) else ""
        raise _PluginError(_TRY_AGAIN_LATER, str(why) or "the node agent refused the pod")


def _print(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
