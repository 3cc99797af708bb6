"""The socket on which the CNI plugin asks for the doors of pods.

Each connection has one request, a line of JSON. The kernel must confirm that the peer is root of
this node. The request repeats what the kubelet says about a pod.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyhole.app.kube.resources import PodIdentity
from keyhole.model.errors import KeyholeError, Refused
from keyhole.sandbox.pods.away_network import away_path

if TYPE_CHECKING:
    from keyhole.app.kube.pod_sessions import PodSessions

MAX_REQUEST = 1 << 20
REQUEST_SECONDS = 10.0
"""Seconds in which a plugin must send its request."""

_CREDENTIALS = struct.Struct("=iII")


class CniServer:
    """Serves the plugin."""

    def __init__(self, path: Path, sessions: PodSessions) -> None:
        self._path = path
        self._sessions = sessions

    async def serve(self) -> None:
        """Listen, and serve until it is cancelled."""
        self._path.unlink(missing_ok=True)
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        server = await asyncio.start_unix_server(self._serve_one, self._path, limit=MAX_REQUEST)
        os.chmod(self._path, 0o600)
        async with server:
            await server.serve_forever()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answer(reader, writer)
        except KeyholeError as error:
            answer = {"done": False, "why": str(error)}
        except (ValueError, KeyError, TimeoutError, OSError) as error:
            answer = {"done": False, "why": f"the request cannot be served: {error!r}"}
        writer.write(json.dumps(answer).encode())
        writer.close()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> dict[str, Any]:
        sock = writer.get_extra_info("socket")
        given = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(given)[1] != 0:
            raise Refused("only root of this node asks for doors")
        async with asyncio.timeout(REQUEST_SECONDS):
            request = json.loads(await reader.readline())
        pod = PodIdentity(request["uid"], request["namespace"], request["name"])
        away = Path(away_path(str(request["container"])))
        match request["command"]:
            case "ADD":
                await self._sessions.open(pod, Path(request["network"]), away)
            case "CHECK":
                self._sessions.check(pod)
            case "DEL":
                await self._sessions.close(pod, away)
            case other:
                raise Refused(f"no command of CNI is called {other}")
        return {"done": True}
