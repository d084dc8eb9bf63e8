"""A FastAPI server whose middleware profiles every second request.

Needs PyTorch, FastAPI, uvicorn and httpx: `pip install fastapi uvicorn httpx`. Serve it with
`uvicorn fastapi_server:app` in this folder; started as a script, it asks itself a few times.
"""

import asyncio
import os
import tempfile
import threading

import httpx
import torch
from fastapi import FastAPI

import xsp
from xsp.integration.asgi import ProfileMiddleware

FOLDER = tempfile.mkdtemp(prefix="xsp-traces-")
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
app = FastAPI()
app.add_middleware(ProfileMiddleware, every=2, folder=FOLDER, keep=3)


@app.get("/digits/{seed}")
async def digit(seed: int) -> int:
    """Classify an image that is made of random numbers."""
    with xsp.span("load image"):
        image = torch.randn(1, 64, generator=torch.Generator().manual_seed(seed))
        await asyncio.sleep(0.005)  # a database answers
    with torch.inference_mode():
        return int(model(image).argmax())


async def ask() -> None:
    """Ask the server for eight digits."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        for seed in range(8):
            print(seed, (await client.get(f"/digits/{seed}")).json())


if __name__ == "__main__":
    asyncio.run(ask())
    for thread in threading.enumerate():
        if thread.name == "xsp-request":  # the last trace is being made
            thread.join()
    trace = xsp.load(f"{FOLDER}/request-{os.getpid()}-000.xsp")
    print(trace)
