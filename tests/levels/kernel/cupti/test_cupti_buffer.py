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


def test_buffers_are_distinct_zero_and_of_the_size_said(buffers: Buffers) -> None:
    first, second = request(buffers), request(buffers)
    assert first[0] is not None
    assert second[0] == first[0] + SIZE
    assert first[1:] == second[1:] == (SIZE, 0)
    assert ctypes.string_at(first[0], SIZE) == bytes(SIZE)


def test_what_was_written_comes_back_in_the_order_of_completion(buffers: Buffers) -> None:
    first, second = request(buffers)[0] or 0, request(buffers)[0] or 0
    complete(buffers, second, b"second")
    complete(buffers, first, b"first")
    assert contents(buffers) == [b"second", b"first"]
    assert buffers.missing == 0


def test_an_empty_buffer_is_not_shown(buffers: Buffers) -> None:
    complete(buffers, request(buffers)[0] or 0, b"")
    assert contents(buffers) == []


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


def test_what_is_in_spare_buffers_is_not_read(buffers: Buffers) -> None:
    own = [request(buffers)[0] or 0 for _ in range(4)]
    spare = request(buffers)[0] or 0
    complete(buffers, spare, b"lost")
    complete(buffers, own[0], b"kept")
    assert contents(buffers) == [b"kept"]
    assert buffers.missing == 3
    for address in own[1:]:
        complete(buffers, address, b"")
    buffers.recycle()
    assert [request(buffers)[0] for _ in range(4)] == own
    assert ctypes.string_at(request(buffers)[0] or 0, SIZE) == bytes(SIZE)


def test_buffers_of_another_client_are_not_taken_for_ours(buffers: Buffers) -> None:
    """CUPTI gives what a profiler handed out before us back to us."""
    foreign = ctypes.create_string_buffer(SIZE)
    own = request(buffers)[0] or 0
    complete(buffers, ctypes.addressof(foreign), b"theirs")
    assert buffers.missing == 1
    complete(buffers, own, b"ours")
    assert (buffers.missing, contents(buffers)) == (0, [b"ours"])
    for _ in range(40):  # more than there are buffers
        buffers.recycle()
        complete(buffers, ctypes.addressof(foreign), b"theirs")
        complete(buffers, request(buffers)[0] or 0, b"ours")
        assert (buffers.missing, buffers.worn, contents(buffers)) == (0, False, [b"ours"])


def test_recycled_buffers_are_empty_and_zero_again(buffers: Buffers) -> None:
    address = request(buffers)[0] or 0
    complete(buffers, address, b"x" * SIZE)
    buffers.recycle()
    assert contents(buffers) == []
    assert request(buffers)[0] == address
    assert ctypes.string_at(address, SIZE) == bytes(SIZE)


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
