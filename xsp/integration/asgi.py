"""A middleware that profiles some requests of an ASGI server, such as FastAPI's or Starlette's.

Example:
    Profile one request in a hundred, and keep the newest 20 traces::

        from xsp.integration.asgi import ProfileMiddleware

        app = FastAPI()
        app.add_middleware(ProfileMiddleware, every=100, folder="traces")

    Any other ASGI application is wrapped: `app = ProfileMiddleware(app, every=100)`.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from xsp.errors import XspError
from xsp.level import LevelSet
from xsp.measuring.program import profile
from xsp.show.export import check

__all__ = ["ProfileMiddleware"]

# The types of ASGI: a scope and a message are dictionaries.
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Any, Receive, Send], Awaitable[None]]


class ProfileMiddleware:
    """Profiles one HTTP request in `every`, and saves or exports its trace.

    The trace is that of the request alone: other requests that are answered meanwhile are not in
    it. It has the name of the request's method and route, such as `GET /items/{item}`. A thread
    makes the trace after the response; until then no other request is profiled. Websockets, and
    requests during another measurement of the process, pass unprofiled. Exceptions pass unchanged.

    Args:
        app: The application that answers.
        every: Profile the last of so many requests; by default of 100.
        folder: Folder of the traces `request-PID-000.xsp`, …, by default `xsp-traces`; None: none.
        keep: Most files of a server process, by default 20; a new trace replaces the oldest.
        export: Destination that each trace is exported to (`Trace.export`), such as
            `http://localhost:4318`; by default none.
        levels: What to record, by default 2; as for `xsp.profile`.

    Raises:
        ValueError: A number is less than 1, there is no such level or destination, or the folder
            is a file.
    """

    def __init__(
        self,
        app: Application,
        *,
        every: int = 100,
        folder: str | os.PathLike[str] | None = "xsp-traces",
        keep: int = 20,
        export: str | None = None,
        levels: LevelSet = 2,
    ) -> None:
        for name, number in (("every", every), ("keep", keep)):
            if number < 1:
                raise ValueError(f"{name} must be 1 or more (not {number}). Choose another number.")
        if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
            raise ValueError(f"folder is a file ({folder}). Name a folder.")
        if export is not None:
            check(export)
        self._app = app
        self._every, self._keep = every, keep
        self._folder = None if folder is None else Path(folder)
        self._export = export
        self._levels = levels
        self._requests = itertools.count(1)
        self._busy = threading.Lock()
        # The first profile of a process imports what it needs: better now than in a request.
        with self._profile():
            pass

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request, one websocket, or the events of the server's life."""
        if (
            scope["type"] != "http"
            or next(self._requests) % self._every
            or not self._busy.acquire(blocking=False)
        ):
            await self._app(scope, receive, send)
            return
        known: dict[str, Any] = {"http.request.method": scope["method"]}

        async def noting(message: Any) -> None:
            if message["type"] == "http.response.start":
                known["http.response.status_code"] = message["status"]
            await send(message)

        prof, step = self._profile(), None
        try:
            with prof, prof.step(scope["method"]) as step:
                try:
                    await self._app(scope, receive, noting)
                finally:
                    if step is not None:
                        step.name, step.attributes = _request_name(scope, known)
        finally:
            if step is None:  # another measurement runs
                self._busy.release()
            else:
                threading.Thread(target=self._save_trace, args=(prof,), name="xsp-request").start()

    def _profile(self) -> profile:
        return profile(self._levels, on_busy="skip", repeat=False, progress=False)

    def _save_trace(self, prof: profile) -> None:
        """Make the trace of a request, and hand it on; a server goes on if that fails."""
        try:
            for trace in prof.groups.values():
                if self._folder is not None:
                    self._folder.mkdir(parents=True, exist_ok=True)
                    trace.save(self._next_path(self._folder))
                if self._export is not None:
                    trace.export(self._export)
        except (XspError, OSError) as error:
            print(f"xsp: no trace of a request: {error}", file=sys.stderr)  # noqa: T201
        finally:
            self._busy.release()

    def _next_path(self, folder: Path) -> Path:
        """Choose a path that is free, or that of the oldest trace, of this server process."""
        name = f"request-{os.getpid()}-{{:03d}}.xsp"
        paths = [folder / name.format(number) for number in range(self._keep)]
        return min(paths, key=lambda path: path.stat().st_mtime_ns if path.exists() else 0)


def _request_name(scope: Any, known: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of a request, and OpenTelemetry's attributes, once it has been answered.

    The router has put its route into the scope; FastAPI notes apart what the routers around say.
    The path itself is never told, because it may hold what identifies people.
    """
    route = scope.get("route")
    context = (scope.get("fastapi") or {}).get("effective_route_context")
    path = getattr(context, "path_format", None) or getattr(route, "path", None)
    if not path:
        return scope["method"], known
    return f"{scope['method']} {path}", {**known, "http.route": str(path)}
