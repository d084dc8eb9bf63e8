"""Keeps the messages of CUDA libraries' loggers, with time and thread.

The loggers of cuBLAS, cuBLASLt and cuDNN call back on the calling thread, before a call does
its work. The callbacks are the machine code below (see `xsp_levels.native.stub` for why): they
read the clock and append the message to reserved memory. The callbacks take no lock, and may
run on several threads at once.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from xsp_levels.native import stub
from xsp_levels.native.reserved_memory import ReservedMemory

CUBLAS, LT_FUNCTION, LT_MESSAGE, CUDNN = 1, 2, 3, 4
_CAPACITY = 1 << 30  # bytes of addresses; only pages that are written to take memory
_HEADER = struct.Struct("=IIqQQ")  # length, origin, time, thread, number; then the text

# state: used, capacity, memory, lost, clock_gettime (8 bytes each)
_LISTING = """
void keep(origin, text, number, doubled): a text ends at a zero byte, or at two of them
keep:
  53                            push rbx
  41 54                         push r12
  41 55                         push r13
  41 56                         push r14
  41 57                         push r15
  48 83 ec 10                   sub rsp, 16
  41 89 fc                      mov r12d, edi
  49 89 f5                      mov r13, rsi
  49 89 d6                      mov r14, rdx
  41 89 cf                      mov r15d, ecx
  48 bb <state>                 mov rbx, state
  bf 01 00 00 00                mov edi, 1                CLOCK_MONOTONIC
  48 89 e6                      mov rsi, rsp
  ff 53 20                      call [rbx+32]             clock_gettime
  31 c9                         xor ecx, ecx              length = 0
  4d 85 ed                      test r13, r13
  74 21                         je measured               no text at all
  41 80 7c 0d 00 00             next: cmp byte ptr [r13+rcx], 0
  75 0d                         jne longer
  45 85 ff                      test r15d, r15d
  74 14                         je measured
  41 80 7c 0d 01 00             cmp byte ptr [r13+rcx+1], 0
  74 0c                         je measured
  48 ff c1                      longer: inc rcx
  48 81 f9 00 00 01 00          cmp rcx, 65536
  72 df                         jb next
  48 8d 51 27                   measured: lea rdx, [rcx+39]
  48 83 e2 f8                   and rdx, -8               header and text, in words
  48 89 d0                      mov rax, rdx
  f0 48 0f c1 03                lock xadd [rbx], rax      at = used, used += rdx
  48 01 c2                      add rdx, rax
  48 3b 53 08                   cmp rdx, [rbx+8]
  77 41                         ja lost
  48 03 43 10                   add rax, [rbx+16]
  89 08                         mov [rax], ecx            length
  44 89 60 04                   mov [rax+4], r12d         origin
  48 69 14 24 00 ca 9a 3b       imul rdx, [rsp], 1000000000
  48 03 54 24 08                add rdx, [rsp+8]
  48 89 50 08                   mov [rax+8], rdx          time
  49 89 c0                      mov r8, rax               which the system call changes,
  49 89 c9                      mov r9, rcx               and this
  b8 ba 00 00 00                mov eax, 186
  0f 05                         syscall                   gettid
  49 89 40 10                   mov [r8+16], rax          thread
  4c 89 c0                      mov rax, r8
  4c 89 c9                      mov rcx, r9
  4c 89 70 18                   mov [rax+24], r14         number
  48 8d 78 20                   lea rdi, [rax+32]
  4c 89 ee                      mov rsi, r13
  f3 a4                         rep movsb
  eb 05                         jmp done
  f0 48 ff 43 18                lost: lock inc qword ptr [rbx+24]
  48 83 c4 10                   done: add rsp, 16
  41 5f                         pop r15
  41 5e                         pop r14
  41 5d                         pop r13
  41 5c                         pop r12
  5b                            pop rbx
  c3                            ret
void (const char *message)
cublas:
  f3 0f 1e fa                   endbr64
  48 89 fe                      mov rsi, rdi
  bf 01 00 00 00                mov edi, 1
  31 d2                         xor edx, edx
  31 c9                         xor ecx, ecx
  e9 28 ff ff ff                jmp keep
void (int level, const char *function, const char *message)
cublaslt:
  f3 0f 1e fa                   endbr64
  52                            push rdx
  bf 02 00 00 00                mov edi, 2
  31 d2                         xor edx, edx
  31 c9                         xor ecx, ecx
  e8 15 ff ff ff                call keep
  5e                            pop rsi
  bf 03 00 00 00                mov edi, 3
  31 d2                         xor edx, edx
  31 c9                         xor ecx, ecx
  e9 06 ff ff ff                jmp keep
void (cudnnSeverity_t, void *user, const cudnnDebug_t *debug, const char *message)
cudnn:
  f3 0f 1e fa                   endbr64
  48 89 ce                      mov rsi, rcx
  bf 04 00 00 00                mov edi, 4
  31 c9                         xor ecx, ecx
  48 85 d2                      test rdx, rdx
  74 04                         je ended
  48 8b 52 20                   mov rdx, [rdx+32]         debug->stream
  ff c1                         ended: inc ecx            its lines end with a zero byte each
  e9 e8 fe ff ff                jmp keep
"""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a logger.

    Attributes:
        origin: `CUBLAS`, `LT_FUNCTION` and after it `LT_MESSAGE`, or `CUDNN`.
        time_ns: CLOCK_MONOTONIC.
        thread: The kernel's number of the thread, `threading.get_native_id()`.
        number: For cuDNN the address of the CUDA stream, else 0.
        text: The message.
    """

    origin: int
    time_ns: int
    thread: int
    number: int
    text: str


class Log:
    """Memory for messages, and the callbacks that fill it; lives as long as the process.

    Args:
        capacity: Bytes of memory.

    Attributes:
        callbacks: Address of the callback of each library: `cublas`, `cublaslt`, `cudnn`.

    Raises:
        OSError: The system does not reserve the memory, or allows no machine code of xsp's.
    """

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self._reserved = ReservedMemory(capacity)
        clock = stub.address_of(ctypes.CDLL(None).clock_gettime)
        self._state = (ctypes.c_uint64 * 5)(0, capacity, self._reserved.start, 0, clock)
        listing = stub.read(_LISTING, state=ctypes.addressof(self._state))
        self.callbacks = stub.install(listing)
        _kept.append(self)

    def take(self) -> tuple[bytes, int]:
        """Return the messages since the last call, and the count of messages that did not fit.

        Must not be called while a library may call back.
        """
        used, lost = min(self._state[0], self._state[1]), self._state[3]
        content = self._reserved.memory[:used]
        self._reserved.clear(used)
        self._state[0] = self._state[3] = 0
        return content, lost


def messages(content: bytes) -> Iterator[Message]:
    """Yield the messages in a log's memory, in order. Pure."""
    at = 0
    while at + _HEADER.size <= len(content):
        length, origin, time_ns, thread, number = _HEADER.unpack_from(content, at)
        if origin == 0:  # the memory was full before this message
            return
        begin = at + _HEADER.size
        text = content[begin : begin + length].decode(errors="replace")
        yield Message(origin, time_ns, thread, number, text)
        at += (_HEADER.size + length + 7) & ~7


_kept: list[Log] = []  # never freed: a library may call back at any later time
