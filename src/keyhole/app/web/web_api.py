"""The routes of the page's API. Whoever reaches them has passed `guard.py`.

Each reads or acts in a thread, as the verbs do, over the control sockets and the audit log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from keyhole.app.monitor.ask_watch import AskWatch, ask_view
from keyhole.app.monitor.log_view import EventFilter
from keyhole.app.monitor.rule_line import find_rule_line
from keyhole.app.monitor.session_list import (
    WatchedSession,
    act_on_session,
    list_sessions,
    short_path,
)
from keyhole.app.monitor.usage import SPANS
from keyhole.app.web.asset_files import read_assets
from keyhole.app.web.live_feed import LiveFeed
from keyhole.app.web.policy_editing import PolicyEdit, PolicyEditor
from keyhole.app.web.policy_pages import describe_catalogue, describe_policies
from keyhole.control.client import ControlFailed, RequestDeclined
from keyhole.control.values import AnswerRequest, AnswerWord
from keyhole.model.errors import KeyholeError, Refused
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from starlette.requests import Request

    from keyhole.app.monitor.log_store import LogStore
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.web.access import WebAccess

MAX_ROW = 2**40
MAX_BODY = 256 * 1024
"""Bytes of a request's body: a policy of the largest size that a person edits."""

MAX_SHOWN_ASKS = 100
"""Questions of a page; the others follow when these are answered."""
MAX_TEXT = 256
"""Characters of a filter."""

_MALFORMED = "malformed"
"""The code of a request that the page never sends."""

_ACTS = frozenset({"revoke", "stop", "resume"})
_ID_DIGITS = frozenset("0123456789abcdef")
_ID_LENGTH = 12


class WebApi:
    """What the page asks for."""

    def __init__(
        self, access: WebAccess, paths: HostPaths, log: LogStore, search_path: str, policy: str
    ) -> None:
        """`policy` is that of the directory in which the verb was typed."""
        self._access = access
        self._paths = paths
        self._log = log
        self._search_path = search_path
        self._policy = policy
        self._seen = 0
        self._events: list[dict[str, Any]] = []
        self._editor = PolicyEditor(paths, search_path)
        self._asks = AskWatch(paths, self._hurry, search_path)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.feed = LiveFeed(self._look, self._attend)
        self.opened: Callable[[], None] = lambda: None
        """Called when the link was opened."""

    def app(self) -> Starlette:
        """The application, which is to be served behind the guard."""
        routes = [
            Route("/api/login", self._login, methods=["POST"]),
            Route("/api/live", self._live, methods=["GET"]),
            Route("/api/log", self._page, methods=["GET"]),
            Route("/api/rule", self._rule, methods=["GET"]),
            Route("/api/choices", self._choices, methods=["GET"]),
            Route("/api/usage", self._usage, methods=["GET"]),
            Route("/api/policies", self._policies, methods=["GET"]),
            Route("/api/policies/{id}", self._read_policy, methods=["GET"]),
            Route("/api/policies/{id}/{act}", self._edit_policy, methods=["POST"]),
            Route("/api/services", self._services, methods=["GET"]),
            Route("/api/sessions/{id}/{act}", self._act, methods=["POST"]),
            Route("/api/asks/{session}/{ask}", self._answer, methods=["POST"]),
        ]
        for path, (kind, data) in read_assets().items():
            routes.append(Route(path, _asset(kind, data), methods=["GET"]))
        return Starlette(
            routes=routes,
            exception_handlers={KeyholeError: _failed, HTTPException: _bad},
        )

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow sessions, questions and the log while this is open. Not the framework's own
        lifespan, which prints a traceback when Ctrl-C comes in the first moment."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(self.feed.run())
            try:
                yield
            finally:
                self._asks.stop()
                looking.cancel()

    def _attend(self, attended: bool) -> None:
        """Sandboxes ask only while a page is open on which a person can answer."""
        if attended:
            self._asks.start()
        else:
            self._asks.stop()

    def _hurry(self) -> None:
        """Called in the thread that hears of questions."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.feed.hurry)

    def _look(self) -> dict[str, Any]:
        """The state that pages are told of."""
        found = list_sessions(self._paths)
        total = self._log.refresh()
        fresh = self._log.fresh(self._seen if self._seen <= total else total)
        self._seen = total
        self._events = [*self._events, *fresh.events][-50:]
        known = {each.view.id for each in found.sessions}
        asks = [each for each in self._asks.asks() if each.session in known]
        return {
            "asks": {
                "asks": [ask_view(each) for each in asks[:MAX_SHOWN_ASKS]],
                "more": max(0, len(asks) - MAX_SHOWN_ASKS),
            },
            "sessions": {
                "sessions": [session_view(each, self._paths.home) for each in found.sessions],
                "problem": visible(found.problem),
            },
            "log": {"generation": fresh.generation, "total": total, "events": self._events},
        }

    async def _login(self, request: Request) -> Response:
        body = await _body(request)
        key = body.get("key")
        token = self._access.exchange(key) if isinstance(key, str) else None
        if token is None:
            return JSONResponse({"error": "link-used"}, 403)
        self.opened()
        return JSONResponse({"token": token})

    async def _live(self, _: Request) -> Response:
        if self.feed.full:
            return JSONResponse({"error": "too-many-pages"}, 503)
        return StreamingResponse(self.feed.follow(), media_type="text/event-stream")

    async def _page(self, request: Request) -> Response:
        given = request.query_params
        wanted = EventFilter(
            session=_text(given.get("session")),
            host=_text(given.get("host")),
            service=_text(given.get("service")),
            kind=_text(given.get("kind")),
            verdict=_text(given.get("verdict")),
            since=_number(given.get("since")),
            until=_number(given.get("until")),
            text=_text(given.get("text")),
        )
        first = _number(given.get("first"))
        count = int(_number(given.get("count")) or 100)
        start = None if first is None else int(first)
        page = await asyncio.to_thread(self._log.page, wanted, start, count)
        return JSONResponse(msgspec.to_builtins(page))

    async def _rule(self, request: Request) -> Response:
        session, rule = (_text(request.query_params.get(name)) for name in ("session", "rule"))

        def find() -> str:
            return find_rule_line(list_sessions(self._paths).sessions, session, rule, self._paths)

        return JSONResponse({"line": await asyncio.to_thread(find)})

    async def _choices(self, _: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(self._log.choices))

    async def _usage(self, request: Request) -> Response:
        by = request.query_params.get("by", "service")
        span = request.query_params.get("span", "hour")
        if by not in ("service", "session") or span not in SPANS:
            raise HTTPException(400, _MALFORMED)
        chart = await asyncio.to_thread(self._log.usage, by, span)
        for each in chart.series:
            each.name = visible(each.name)
        return JSONResponse(msgspec.to_builtins(chart))

    async def _policies(self, _: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(self._read_policies))

    def _read_policies(self) -> list[dict[str, Any]]:
        return describe_policies(self._paths, self._search_path, self._listed_policies())

    def _listed_policies(self) -> list[str]:
        of_sessions = [each.view.policy for each in list_sessions(self._paths).sessions]
        return [each for each in (self._policy, *of_sessions) if each]

    async def _read_policy(self, request: Request) -> Response:
        policy = request.path_params["id"]

        def read() -> dict[str, Any]:
            return self._editor.read(policy, self._listed_policies())

        return JSONResponse(await asyncio.to_thread(read))

    async def _edit_policy(self, request: Request) -> Response:
        policy, act = request.path_params["id"], request.path_params["act"]
        body = await _body(request)
        text, base, digest = (body.get(name, "") for name in ("text", "base", "digest"))
        if act not in ("check", "save") or not all(
            isinstance(each, str) for each in (text, base, digest)
        ):
            raise HTTPException(400, _MALFORMED)
        edit = PolicyEdit(policy, text, base)

        def work() -> dict[str, Any]:
            listed = self._listed_policies()
            if act == "check":
                return self._editor.check(edit, listed)
            self._editor.save(edit, digest, listed)
            return {}

        return JSONResponse(await asyncio.to_thread(work))

    async def _services(self, _: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(describe_catalogue))

    async def _act(self, request: Request) -> Response:
        session, act = request.path_params["id"], request.path_params["act"]
        if act not in _ACTS or len(session) != _ID_LENGTH or not _ID_DIGITS.issuperset(session):
            return JSONResponse({"error": "not-found"}, 404)
        await asyncio.to_thread(act_on_session, self._paths, session, act)
        await self.feed.look()
        return Response(status_code=204)

    async def _answer(self, request: Request) -> Response:
        session, ask = request.path_params["session"], request.path_params["ask"]
        body = await _body(request)
        try:
            word = AnswerWord(str(body.get("answer")))
        except ValueError:
            raise HTTPException(400, _MALFORMED) from None
        seconds = body.get("seconds", 0)
        if type(seconds) is not int:
            raise HTTPException(400, _MALFORMED)
        given = AnswerRequest(word, seconds, "web")
        changed = await asyncio.to_thread(self._asks.answer, session, ask, given)
        await self.feed.look()
        return JSONResponse({"changed": changed})


def session_view(session: WatchedSession, home: Path) -> dict[str, Any]:
    """A session for the page; its command and policy are texts of others."""
    shown: dict[str, Any] = msgspec.to_builtins(session.view)
    shown |= {"own": session.own, "name": session.name}
    shown["policy"] = short_path(session.view.policy, home)
    return {name: visible(each) if isinstance(each, str) else each for name, each in shown.items()}


async def _body(request: Request) -> dict[str, Any]:
    data = b""
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BODY:
            raise HTTPException(413, "too-large")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise HTTPException(400, _MALFORMED) from None
    if not isinstance(found, dict):
        raise HTTPException(400, _MALFORMED)
    return found


def _text(given: str | None) -> str:
    if given is not None and len(given) > MAX_TEXT:
        raise HTTPException(400, _MALFORMED)
    return given or ""


def _number(given: str | None) -> float | None:
    if not given:
        return None
    try:
        found = float(given)
    except ValueError:
        raise HTTPException(400, _MALFORMED) from None
    if not 0 <= found <= MAX_ROW:
        raise HTTPException(400, _MALFORMED)
    return found


def _asset(kind: str, data: bytes) -> Callable[[Request], Response]:
    def serve(_: Request) -> Response:
        return Response(data, media_type=kind)

    return serve


def _failed(_: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, RequestDeclined) else 502
    if isinstance(error, Refused):
        status = 409
    code = "gateway-failed" if isinstance(error, ControlFailed) else "failed"
    return JSONResponse({"error": code, "why": visible(str(error))}, status)


def _bad(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):  # as the type of a handler wants it
        raise error
    return JSONResponse({"error": error.detail}, error.status_code)
