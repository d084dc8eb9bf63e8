"""Hands buffers in reserved memory to CUPTI, and takes filled buffers back.

CUPTI asks for an empty buffer when a thread makes its first record and whenever a buffer
is full, in the middle of the CUDA call that made the record. CUPTI gives buffers back
from a thread of its own, or inside `cuptiActivityFlushAll`. Both callbacks are the
machine code below (see `xsp_levels.native.stub` for why): an atomic counter numbers the
buffers of one large reserved region, and buffers given back are noted in a table. Only
pages that are written to take memory; all pages are zero, so CUPTI need not clear them.

CUPTI before CUDA 12.9 crashes if it gets no buffer: where none is left, spare buffers go round,
which nobody reads. A buffer that another client of CUPTI handed out may be given back here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from xsp_levels.native import stub
from xsp_levels.native.reserved_memory import ReservedMemory

SIZE = 8 << 20  # bytes per buffer: some 30,000 launches with their kernels
COUNT = 512  # buffers: 4 GiB of addresses, 15 million launches with their kernels
SPARE = 16  # buffers that are not read; the machine code below has this number as a mask

# state: handed out, count, region, size, given back, table, its room (8 bytes each)
_LISTING = """
void (uint8_t **buffer, size_t *size, size_t *most_records)
requested:
  f3 0f 1e fa                 endbr64
  49 b8 <state>               mov r8, state
  b8 01 00 00 00              mov eax, 1
  f0 49 0f c1 00              lock xadd [r8], rax      number = handed out++
  48 c7 02 00 00 00 00        mov qword ptr [rdx], 0       as many records as fit
  49 8b 48 18                 mov rcx, [r8+24]
  48 89 0e                    mov [rsi], rcx           size
  49 3b 40 08                 cmp rax, [r8+8]
  72 07                       jb left
  83 e0 0f                    and eax, 15              there is none left: a spare one
  49 03 40 08                 add rax, [r8+8]
  48 0f af c1                 left: imul rax, rcx
  49 03 40 10                 add rax, [r8+16]
  48 89 07                    mov [rdi], rax           region + number * size
  c3                          ret
void (CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
completed:
  f3 0f 1e fa                 endbr64
  49 b9 <state>               mov r9, state
  b8 01 00 00 00              mov eax, 1
  f0 49 0f c1 41 20           lock xadd [r9+32], rax   number = given back++
  49 3b 41 30                 cmp rax, [r9+48]
  73 0f                       jae full
  48 c1 e0 04                 shl rax, 4
  49 03 41 28                 add rax, [r9+40]
  48 89 10                    mov [rax], rdx           table[number] = buffer, valid
  4c 89 40 08                 mov [rax+8], r8
  c3                          full: ret
"""

_kept: list[Buffers] = []  # never freed: CUPTI may call back at any later time


class Buffers:
    """Buffers for records, and the two callbacks that hand them out and take them back.

    Args:
        count: Number of buffers.
        size: Bytes of each buffer.

    Attributes:
        requested: Address of the callback that hands out a buffer.
        completed: Address of the callback that takes a buffer back.

    Raises:
        OSError: The system does not reserve the memory, or allows no machine code of xsp's.
    """

    def __init__(self, count: int = COUNT, size: int = SIZE) -> None:
        self._count, self._size = count, size
        self._reserved = ReservedMemory((count + SPARE) * size)
        self._returned = 0  # of these buffers, given back and no longer noted in the table
        self._room = 2 * count  # for spare ones and other clients' as well
        self._table = (ctypes.c_uint64 * (2 * self._room))()
        table = ctypes.addressof(self._table)
        start = self._reserved.start
        self._state = (ctypes.c_uint64 * 7)(0, count, start, size, 0, table, self._room)
        listing = stub.read(_LISTING, state=ctypes.addressof(self._state))
        code = stub.install(listing)
        self.requested, self.completed = code["requested"], code["completed"]
        _kept.append(self)

    @property
    def missing(self) -> int:
        """Number of buffers that CUPTI holds."""
        return min(self._state[0], self._count) - self._returned - len(self._own())

    @property
    def refused(self) -> int:
        """Number of times that CUPTI asked for a buffer when none was left."""
        return max(0, self._state[0] - self._count)

    @property
    def worn(self) -> bool:
        """Whether more than half of the buffers cannot be handed out again: CUPTI kept some."""
        return 2 * self._state[0] > self._count

    def filled(self) -> Iterator[tuple[int, memoryview]]:
        """Yield address and content of each buffer given back, in the order of giving back."""
        with memoryview(self._reserved.memory) as memory:
            for at, valid in self._own():
                if valid:
                    with memory[at : at + min(valid, self._size)] as content:
                        yield self._reserved.start + at, content

    def recycle(self) -> None:
        """Make all buffers empty again but those that CUPTI still holds.

        Must not be called while CUPTI records.
        """
        if self.missing:
            self._returned += len(self._own())
            self._state[0] -= self.refused
            self._table[: 2 * self._room] = [0] * (2 * self._room)
            return
        used = self._count + SPARE if self.refused else self._state[0]
        self._reserved.clear(used * self._size)
        self._state[0] = self._state[4] = self._returned = 0

    def _own(self) -> list[tuple[int, int]]:
        """Return place in the region and bytes of each buffer given back that is to be read."""
        noted = self._table[: 2 * min(self._state[4], self._room)]
        start, last = self._reserved.start, len(noted)
        places = ((noted[at] - start, noted[at + 1]) for at in range(0, last, 2))
        return [(at, valid) for at, valid in places if 0 <= at < self._count * self._size]
