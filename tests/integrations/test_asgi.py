"""The middleware of ASGI servers, in a real FastAPI application."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import torch
import uvicorn
from fastapi import APIRouter, FastAPI, WebSocket
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient

import xsp
from xsp.integration.asgi import ProfileMiddleware
from xsp.testing import only_providers
from xsp_levels.framework.torch.provider import Torch

T = TypeVar("T")
X = torch.ones(2, 4)


@pytest.fixture(autouse=True)
def torch_alone() -> Any:
    with only_providers(Torch()):
        yield


def application(folder: Path | None, **options: Any) -> FastAPI:
    """An application with a model, behind the middleware."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    app, router = FastAPI(), APIRouter(prefix="/items")

    @router.get("/{item}")
    async def read(item: int) -> int:
        with torch.inference_mode(), xsp.span("predict"):
            model(X)
        await asyncio.sleep(0.001)
        return item

    @router.get("/threads/{item}")
    def read_in_thread(item: int) -> int:
        model(X)
        return item

    @router.get("/streams/{item}")
    async def stream(item: int) -> StreamingResponse:
        async def chunks() -> AsyncIterator[str]:
            for _ in range(item):
                with xsp.span("chunk"):
                    model(X)
                yield "x"
                await asyncio.sleep(0.001)

        return StreamingResponse(chunks())

    @router.get("/errors/{item}")
    async def fail(item: int) -> None:
        raise KeyError(item)

    @app.websocket("/echo")
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())
        await websocket.close()

    app.include_router(router, prefix="/v1")
    app.add_middleware(ProfileMiddleware, folder=folder, levels="layers", **options)
    return app


def answered(
    app: Any, ask: Callable[[httpx.AsyncClient], Coroutine[Any, Any, T]], *, raises: bool = False
) -> T:
    """Send requests as a client, and wait until their traces are made."""

    async def talk() -> T:
        transport = httpx.ASGITransport(app, raise_app_exceptions=raises)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await ask(client)

    try:
        return asyncio.run(talk())
    finally:
        wait_for_traces()


def wait_for_traces() -> None:
    for thread in threading.enumerate():
        if thread.name == "xsp-request":
            thread.join(30)


def get(app: Any, *paths: str) -> list[httpx.Response]:
    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [await client.get(path) for path in paths]

    return answered(app, ask)


def told(folder: Path) -> list[xsp.Trace]:
    """The traces in a folder, in the order in which they were made."""
    paths = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    traces = [xsp.load(path) for path in paths]
    for trace in traces:
        trace.check()
    return traces


@pytest.mark.parametrize(
    ("path", "name", "inside"),
    [
        ("/v1/items/7", "GET /v1/items/{item}", {"predict", "0", "1"}),
        ("/v1/items/threads/7", "GET /v1/items/threads/{item}", {"0", "1"}),
        ("/v1/items/streams/3", "GET /v1/items/streams/{item}", {"chunk", "0", "1"}),
        ("/nowhere/7", "GET", set()),
    ],
)
def test_a_request_has_the_name_of_its_route_and_what_it_did(
    tmp_path: Path, path: str, name: str, inside: set[str]
) -> None:
    [response] = get(application(tmp_path, every=1), path)
    [trace] = told(tmp_path)
    assert trace.root.name == name
    assert inside <= set(trace.spans["name"])
    assert not any("7" in found for found in trace.spans["name"])
    attributes = trace.root.attributes
    assert attributes["user.http.request.method"] == "GET"
    assert attributes["user.http.response.status_code"] == response.status_code
    assert attributes.get("user.http.route") == (name.removeprefix("GET ") if inside else None)


def test_one_request_in_so_many_is_profiled_and_files_are_bounded(tmp_path: Path) -> None:
    app = application(tmp_path, every=2, keep=2)
    for number in range(1, 9):
        [response] = get(app, f"/v1/items/{number}")
        assert response.json() == number
        # Each second request replaces the oldest trace.
        assert len([*tmp_path.iterdir()]) == min(number // 2, 2)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"request-{os.getpid()}-{number:03d}.xsp" for number in range(2)
    }


def test_a_request_holds_nothing_of_those_answered_meanwhile(tmp_path: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        paths = ["/v1/items/streams/20", *(f"/v1/items/{number}" for number in range(8))]
        return list(await asyncio.gather(*map(client.get, paths)))

    first, *others = answered(application(tmp_path, every=1), ask)
    assert first.text == "x" * 20
    assert [response.json() for response in others] == list(range(8))
    [trace] = told(tmp_path)  # the others came while it was profiled
    assert trace.root.name == "GET /v1/items/streams/{item}"
    assert "predict" not in set(trace.spans["name"])
    [chunk] = trace.spans.filter(name="chunk").iter_rows(named=True)
    assert chunk["attributes"]["calls"] == 20


def test_exceptions_pass_and_are_told(tmp_path: Path) -> None:
    app = application(tmp_path, every=1)
    with pytest.raises(KeyError, match="7"):
        answered(app, lambda client: client.get("/v1/items/errors/7"), raises=True)
    [trace] = told(tmp_path)
    assert trace.root.attributes["error"] == "KeyError"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_websockets_and_the_servers_life_pass(tmp_path: Path) -> None:
    app = application(tmp_path, every=1)
    with TestClient(app) as client, client.websocket_connect("/echo") as socket_:
        socket_.send_text("hello")
        assert socket_.receive_text() == "hello"
    assert not [*tmp_path.iterdir()]


def test_requests_in_another_measurement_are_not_profiled_and_no_steps_of_it(
    tmp_path: Path,
) -> None:
    app = application(tmp_path, every=1)
    get(app, "/v1/items/1")
    with xsp.profile(levels="layers", repeat=False, progress=False) as prof:
        get(app, "/v1/items/1", "/v1/items/2")
    assert len([*tmp_path.iterdir()]) == 1
    assert [group["name"] for group in prof.trace.metadata["groups"]] != ["GET /v1/items/{item}"]
    get(app, "/v1/items/3")
    assert len([*tmp_path.iterdir()]) == 2


def test_a_destination_that_fails_is_named_and_the_server_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = tmp_path / "missing" / "request.otlp.json"
    app = application(None, every=1, export=str(export))
    assert [r.json() for r in get(app, "/v1/items/1", "/v1/items/2")] == [1, 2]
    assert "xsp: no trace of a request" in capsys.readouterr().err
    (tmp_path / "file").write_text("no folder")
    for options in ({"folder": tmp_path / "file"}, {"export": "nowhere"}):
        with pytest.raises(ValueError, match="file"):
            ProfileMiddleware(app, **options)


def test_traces_are_exported_with_opentelemetrys_names(tmp_path: Path) -> None:
    export = tmp_path / "request.otlp.json"
    get(application(None, every=1, export=str(export)), "/v1/items/7")
    written = export.read_text()
    assert "http.route" in written
    assert "user.http.route" not in written
    assert "/v1/items/{item}" in written


@pytest.mark.parametrize("options", [{"every": 0}, {"keep": 0}, {"levels": 9}])
def test_numbers_out_of_range_are_refused(options: dict[str, int]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    with pytest.raises(ValueError, match=r"1"):
        ProfileMiddleware(app, **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_server_is_profiled_while_it_serves(tmp_path: Path) -> None:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    app = application(tmp_path, every=3)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", loop="asyncio"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        while not server.started:
            time.sleep(0.01)
        with httpx.Client(base_url=address) as client:
            for number in range(6):
                assert client.get(f"/v1/items/streams/{number}").text == "x" * number
                wait_for_traces()
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()
    first, second = told(tmp_path)
    assert first.root.name == second.root.name == "GET /v1/items/streams/{item}"
    assert second.root.attributes["awaiting_ns"] > 0
