from __future__ import annotations

import ctypes
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.library.cuda.log import CUBLAS, CUDNN, LT_FUNCTION, LT_MESSAGE, Log, messages
from xsp_levels.native import stub

CUBLAS_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
LT_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)
CUDNN_CALLBACK = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p
)
TEXTS = st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=80))


@pytest.fixture
def log() -> Log:
    if reason := stub.unsupported():
        pytest.skip(f"{reason}: run this test on Linux with an x86-64 CPU")
    return Log(capacity=1 << 20)


def test_a_message_is_kept_with_its_moment_and_thread(log: Log) -> None:
    before = time.monotonic_ns()
    CUBLAS_CALLBACK(log.callbacks["cublas"])(b"I! cuBLAS called")
    after = time.monotonic_ns()
    content, lost = log.take()
    (message,) = messages(content)
    assert lost == 0
    assert (message.origin, message.text, message.number) == (CUBLAS, "I! cuBLAS called", 0)
    assert before <= message.time_ns <= after
    assert message.thread == threading.get_native_id()


def test_cublaslt_says_function_and_message(log: Log) -> None:
    LT_CALLBACK(log.callbacks["cublaslt"])(2, b"cublasLtMatmul", b"A=0X1 stream=0X0")
    found = [(message.origin, message.text) for message in messages(log.take()[0])]
    assert found == [(LT_FUNCTION, "cublasLtMatmul"), (LT_MESSAGE, "A=0X1 stream=0X0")]


def test_cudnn_says_lines_and_a_stream(log: Log) -> None:
    debug = (ctypes.c_uint64 * 16)()
    debug[4] = 0x5000
    text = ctypes.create_string_buffer(b"CuDNN called:\0    n: 1;\0\0")
    callback = ctypes.CFUNCTYPE(None, ctypes.c_int, *[ctypes.c_void_p] * 3)
    callback(log.callbacks["cudnn"])(3, None, ctypes.addressof(debug), ctypes.addressof(text))
    (message,) = messages(log.take()[0])
    assert (message.origin, message.number) == (CUDNN, 0x5000)
    assert message.text == "CuDNN called:\0    n: 1;"


@pytest.mark.parametrize("name", ["cublas", "cublaslt", "cudnn"])
def test_a_message_without_text_is_kept_as_empty(log: Log, name: str) -> None:
    callbacks = {"cublas": CUBLAS_CALLBACK, "cublaslt": LT_CALLBACK, "cudnn": CUDNN_CALLBACK}
    arguments = {"cublas": (None,), "cublaslt": (0, None, None), "cudnn": (0, None, None, None)}
    callbacks[name](log.callbacks[name])(*arguments[name])
    assert {message.text for message in messages(log.take()[0])} == {""}


@given(TEXTS)
def test_messages_come_back_as_they_were_said(texts: list[str]) -> None:
    if reason := stub.unsupported():
        pytest.skip(f"{reason}: run this test on Linux with an x86-64 CPU")
    callback = CUBLAS_CALLBACK(SHARED.callbacks["cublas"])
    for text in texts:
        callback(text.encode())
    assert [message.text for message in messages(SHARED.take()[0])] == texts
    assert SHARED.take() == (b"", 0)


def test_what_has_no_room_is_counted_and_what_came_before_stays(log: Log) -> None:
    small = Log(capacity=4096)
    for number in range(100):
        CUBLAS_CALLBACK(small.callbacks["cublas"])(b"%03d" % number + b"x" * 85)
    content, lost = small.take()
    kept = [message.text[:3] for message in messages(content)]
    assert kept == [f"{number:03}" for number in range(len(kept))]
    assert len(kept) == 4096 // 120
    assert len(kept) + lost == 100


def test_a_very_long_message_is_cut(log: Log) -> None:
    CUBLAS_CALLBACK(log.callbacks["cublas"])(b"x" * 100_000)
    CUBLAS_CALLBACK(log.callbacks["cublas"])(b"next")
    assert [len(message.text) for message in messages(log.take()[0])] == [65536, 4]


def test_threads_do_not_mix_their_messages(log: Log) -> None:
    together = threading.Barrier(3)  # else a thread may get the number of one that has ended

    def say(name: bytes) -> None:
        together.wait()
        for number in range(500):
            CUBLAS_CALLBACK(log.callbacks["cublas"])(name * 20 + b"%d" % number)
        together.wait()

    threads = [threading.Thread(target=say, args=(name,)) for name in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said: dict[int, list[str]] = {}
    for message in messages(log.take()[0]):
        said.setdefault(message.thread, []).append(message.text)
    assert sorted(said.values()) == [
        [name * 20 + str(number) for number in range(500)] for name in "abc"
    ]


if stub.unsupported() is None:
    SHARED = Log(capacity=1 << 20)
