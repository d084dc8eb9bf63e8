from __future__ import annotations

import ctypes
import threading

import pytest
from fake_cupti import COMPLETED, REQUESTED

from xsp_levels.kernel.cupti.buffer import SPARE, Buffers
from xsp_levels.native import stub

SIZE = 4096


@pytest.fixture
def buffers() -> Buffers:
    if reason := stub.unsupported():
        pytest.skip(f"{reason}: run this test on Linux with an x86-64 CPU")
    return Buffers(count=4, size=SIZE)


def request(buffers: Buffers) -> tuple[int | None, int, int]:
    buffer, size, most = ctypes.c_void_p(1), ctypes.c_size_t(1), ctypes.c_size_t(1)
    REQUESTED(buffers.requested)(ctypes.byref(buffer), ctypes.byref(size), ctypes.byref(most))
    return buffer.value, size.value, most.value


def complete(buffers: Buffers, address: int, content: bytes) -> None:
    ctypes.memmove(address, content, len(content))
    COMPLETED(buffers.completed)(None, 0, address, SIZE, len(content))


def contents(buffers: Buffers) -> list[bytes]:
    return [bytes(content) for _, content in buffers.filled()]


def test_what_was_written_comes_back_in_the_order_of_completion(buffers: Buffers) -> None:
    first, second = request(buffers)[0] or 0, request(buffers)[0] or 0
    complete(buffers, second, b"second")
    complete(buffers, first, b"first")
    assert contents(buffers) == [b"second", b"first"]
    assert buffers.missing == 0


def test_without_room_cupti_gets_spare_buffers_and_it_is_counted(buffers: Buffers) -> None:
    """CUPTI before CUDA 12.9 crashes if it gets none."""
    own = {request(buffers)[0] for _ in range(4)}
    spare = [request(buffers) for _ in range(3 * SPARE)]
    places = {address for address, *_ in spare}
    assert None not in places
    assert not places & own
    assert len(places) == SPARE
    assert {tuple(rest) for _, *rest in spare} == {(SIZE, 0)}
    for address in places:
        assert address is not None
        assert ctypes.string_at(address, SIZE) == bytes(SIZE)
    assert (buffers.refused, buffers.missing) == (3 * SPARE, 4)


def test_a_buffer_that_cupti_keeps_is_never_handed_out_again(buffers: Buffers) -> None:
    kept, returned = request(buffers)[0] or 0, request(buffers)[0] or 0
    complete(buffers, returned, b"done")
    assert buffers.missing == 1
    buffers.recycle()
    later = [request(buffers)[0] for _ in range(2)]
    assert kept not in later
    assert returned not in later
    assert buffers.missing == 3
    complete(buffers, kept, b"late")
    assert contents(buffers) == [b"late"]
    assert buffers.missing == 2


def test_threads_never_get_the_same_buffer() -> None:
    if reason := stub.unsupported():
        pytest.skip(f"{reason}: run this test on Linux with an x86-64 CPU")
    many = Buffers(count=4000, size=64)
    got: list[list[int | None]] = [[] for _ in range(4)]

    def take(number: int) -> None:
        got[number] = [request(many)[0] for _ in range(1000)]

    threads = [threading.Thread(target=take, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({address for each in got for address in each}) == 4000
