"""The judge: a process that reads a hostile pack and can do nothing else.

Started by `judge_pool.py` as a program of its own, with an empty environment, one socket and
nothing else open. It limits itself, gives up all but a few system calls, and only then takes the
pack. From then on it can import, open or start nothing, and the other end of the socket trusts
little of what it sends. Any error ends it, and without a finding no push is sent (I3).
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import struct

from keyhole.judge import judge_protocol
from keyhole.judge.judge_protocol import HEAD, JudgeMessage
from keyhole.model.errors import Malformed
from keyhole.policy.push_trial import PushTrial
from keyhole.system import syscalls
from keyhole.wire.git_object import ObjectKind, object_id
from keyhole.wire.pack import MemorySource, Pack

MAX_MEMORY = 1024 * 1024 * 1024
"""Bytes of address space: for a million objects, the oids of 400,000 and their cached content."""

MAX_CPU_SECONDS = 60
"""Seconds of processor time for one push. A pack of 256 MiB takes one, and one at the limits of
`Pack` about twenty."""

SOCKET = 3
_FIRST_FREE = SOCKET + 1

_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_BPF_INSTRUCTION_BYTES = 8

_LIMITS = (
    (resource.RLIMIT_AS, MAX_MEMORY),
    (resource.RLIMIT_CPU, MAX_CPU_SECONDS),
    (resource.RLIMIT_NOFILE, _FIRST_FREE + 1),  # and the pack
    (resource.RLIMIT_FSIZE, 0),
    (resource.RLIMIT_CORE, 0),
    (resource.RLIMIT_NPROC, 0),
)


class _File:
    """The pack, within the file that the push was kept in."""

    def __init__(self, descriptor: int, offset: int, size: int) -> None:
        self._descriptor = descriptor
        self._offset = offset
        self.size = size

    def read(self, at: int, size: int) -> bytes:
        """Some of the bytes, fewer at the end."""
        size = min(size, self.size - at)
        return os.pread(self._descriptor, size, self._offset + at) if size > 0 else b""


class _Judge:
    """The judging of one push, over one socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def take_filter(self) -> bytes:
        """The first message."""
        _, program = self._hear()
        return program

    def hear(self) -> None:
        """Read the push, and send the findings."""
        head, descriptors, _, _ = socket.recv_fds(self._control, HEAD.size, 1)
        if not head:
            return  # nothing was pushed after all
        _, size = HEAD.unpack(head + self._exactly(HEAD.size - len(head)))
        case, offset, length = judge_protocol.read_case(self._exactly(size))
        wanted = {ObjectKind.COMMIT, ObjectKind.TAG} | (
            {ObjectKind.TREE} if case.deny_paths else set()
        )
        try:
            pack = None
            if descriptors:
                source = _File(descriptors[0], offset, length)
                pack = Pack(source, case.object_format, frozenset(wanted))
            trial = PushTrial(case, pack).run()
            answer = None
            while True:
                try:
                    question = trial.send(answer)
                except StopIteration as end:
                    self._say(JudgeMessage.FOUND, judge_protocol.write_findings(end.value))
                    return
                self._say(JudgeMessage.QUESTION, judge_protocol.write_question(question))
                answer = self._answer(case.object_format)
        except Malformed as error:
            self._say(JudgeMessage.UNSOUND, judge_protocol.one_plain_line(error.message).encode())

    def say_failure(self, error: BaseException) -> None:
        """Report what went wrong, as far as that is known."""
        self._say(JudgeMessage.FAILED, type(error).__name__.encode())

    def _answer(self, object_format: str) -> Pack | None:
        """The pack that answers a question; None if none comes, or it cannot be read."""
        data = bytearray()
        while True:
            said, piece = self._hear()
            data += piece
            if said == JudgeMessage.UNANSWERED:
                return None
            if said == JudgeMessage.ANSWERED:
                try:
                    return Pack(MemorySource(data), object_format)
                except Malformed:
                    return None

    def _say(self, said: JudgeMessage, content: bytes) -> None:
        data = memoryview(judge_protocol.frame(said, content))
        while data:
            data = data[os.write(SOCKET, data) :]

    def _hear(self) -> tuple[bytes, bytes]:
        said, size = HEAD.unpack(self._exactly(HEAD.size))
        return said, self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = os.read(SOCKET, size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)


def main() -> None:
    """Run the judge; never returns."""
    try:
        syscalls.die_with_parent(os.getppid())
        os.chdir("/")
        os.closerange(_FIRST_FREE, os.sysconf("SC_OPEN_MAX"))
        judge = _Judge(socket.socket(fileno=SOCKET))
        try:
            _shut_in(judge.take_filter())
            judge.hear()
        except Exception as error:  # noqa: BLE001 - whoever waits is told, and refuses
            judge.say_failure(error)
    finally:
        os._exit(0)  # an orderly exit needs system calls that are forbidden


def _shut_in(program: bytes) -> None:
    """Confine this process: from here on, nothing can leave it except through its socket."""
    for object_format in ("sha1", "sha256"):
        object_id(ObjectKind.BLOB, b"", object_format)  # OpenSSL reads its settings the first time
    for limit, value in _LIMITS:
        resource.setrlimit(limit, (value, value))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(DUMPABLE)")
    syscalls.no_new_privileges()
    syscalls.lose_capabilities()
    instructions = ctypes.create_string_buffer(program, len(program))
    count = len(program) // _BPF_INSTRUCTION_BYTES
    # struct sock_fprog: unsigned short, padding, a pointer.
    loaded = struct.pack("@HP", count, ctypes.addressof(instructions))
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, loaded, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(SECCOMP)")
