"""Finds the captured node of each CUDA graph node that ran, from CUPTI's events of nodes.

CUPTI calls back when a node is made: while a stream is captured, and while the graph is
made executable, which clones its nodes. Kernels of a replayed graph bear the clones' numbers.
The callback is the machine code below (see `xsp_levels.native.stub` for why), which notes the
time, the thread and the numbers of nodes. A program that makes no graph never calls it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from xsp_levels.native import stub
from xsp_levels.native.reserved_memory import ReservedMemory

CREATED, CLONED = 13, 20  # CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, _CLONED
RESOURCE = 3  # CUPTI_CB_DOMAIN_RESOURCE
EVENT = np.dtype(
    [("time", "<i8"), ("node", "<u8"), ("original", "<u8"), ("thread", "<u4"), ("what", "<u4")]
)
_CAPACITY = 1 << 20  # events; only pages that are written to take memory

Events = npt.NDArray[np.void]
CapturedNodes = dict[str, npt.NDArray[np.int64]]  # time, thread (the kernel's number) and node

# state: used, capacity, memory, lost, clock_gettime, cuptiGetGraphNodeId (8 bytes each)
_LISTING = """
void (void *user, CUpti_CallbackDomain domain, CUpti_CallbackId what, const void *data)
node:
  f3 0f 1e fa                   endbr64
  53                            push rbx
  41 54                         push r12
  41 55                         push r13
  41 56                         push r14
  48 83 ec 28                   sub rsp, 40               time, node, original
  48 bb <state>                 mov rbx, state
  41 89 d4                      mov r12d, edx
  4c 8b 69 10                   mov r13, [rcx+16]         data->resourceDescriptor
  4d 85 ed                      test r13, r13
  0f 84 8e 00 00 00             je done
  48 c7 44 24 10 00 00 00 00    mov qword ptr [rsp+16], 0
  48 c7 44 24 18 00 00 00 00    mov qword ptr [rsp+24], 0
  49 8b 7d 10                   mov rdi, [r13+16]         its node
  48 8d 74 24 10                lea rsi, [rsp+16]
  ff 53 28                      call [rbx+40]             cuptiGetGraphNodeId
  41 83 fc 14                   cmp r12d, 20
  75 0c                         jne timed
  49 8b 7d 18                   mov rdi, [r13+24]         its originalNode
  48 8d 74 24 18                lea rsi, [rsp+24]
  ff 53 28                      call [rbx+40]
  bf 01 00 00 00                timed: mov edi, 1         CLOCK_MONOTONIC
  48 89 e6                      mov rsi, rsp
  ff 53 20                      call [rbx+32]             clock_gettime
  b8 01 00 00 00                mov eax, 1
  f0 48 0f c1 03                lock xadd [rbx], rax      number = used++
  48 3b 43 08                   cmp rax, [rbx+8]
  73 3e                         jae lost
  48 c1 e0 05                   shl rax, 5
  48 03 43 10                   add rax, [rbx+16]
  49 89 c6                      mov r14, rax              event number
  48 69 04 24 00 ca 9a 3b       imul rax, [rsp], 1000000000
  48 03 44 24 08                add rax, [rsp+8]
  49 89 06                      mov [r14], rax            time
  48 8b 44 24 10                mov rax, [rsp+16]
  49 89 46 08                   mov [r14+8], rax          node
  48 8b 44 24 18                mov rax, [rsp+24]
  49 89 46 10                   mov [r14+16], rax         original
  b8 ba 00 00 00                mov eax, 186
  0f 05                         syscall                   gettid
  41 89 46 18                   mov [r14+24], eax         thread
  45 89 66 1c                   mov [r14+28], r12d        what
  eb 05                         jmp done
  f0 48 ff 43 18                lost: lock inc qword ptr [rbx+24]
  48 83 c4 28                   done: add rsp, 40
  41 5e                         pop r14
  41 5d                         pop r13
  41 5c                         pop r12
  5b                            pop rbx
  c3                            ret
"""


class NodeLog:
    """Memory for CUPTI's events of nodes, and the callback that fills the memory.

    A log lives as long as the process: CUPTI may call back at any later time.

    Args:
        graph_node_id: Address of `cuptiGetGraphNodeId`.
        capacity: Number of events that the memory holds.

    Attributes:
        callback: Address of the callback.

    Raises:
        OSError: The system does not reserve the memory, or allows no machine code of xsp's.
    """

    def __init__(self, graph_node_id: int, capacity: int = _CAPACITY) -> None:
        self._reserved = ReservedMemory(capacity * EVENT.itemsize)
        start = self._reserved.start
        clock = stub.address_of(ctypes.CDLL(None).clock_gettime)
        self._state = (ctypes.c_uint64 * 6)(0, capacity, start, 0, clock, graph_node_id)
        listing = stub.read(_LISTING, state=ctypes.addressof(self._state))
        self.callback = stub.install(listing)["node"]
        _kept.append(self)

    def take(self) -> tuple[Events, int]:
        """Return the events since the last call, and the count of events that did not fit.

        Must not be called while CUPTI may call back.
        """
        used, lost = min(self._state[0], self._state[1]), self._state[3]
        events = np.frombuffer(self._reserved.memory, EVENT, used).copy()
        self._reserved.clear(used * EVENT.itemsize)
        self._state[0] = self._state[3] = 0
        return events, lost


_kept: list[NodeLog] = []


def no_events() -> Events:
    """Return the events of a recording in which no graph was made."""
    return np.zeros(0, EVENT)


class Lineage:
    """Ancestry of nodes: the nodes of an executable graph are clones of captured nodes.

    CUPTI reports a clone twice in one call: as created, and as cloned from its original. A node
    that is created and not cloned is a new one, even if an earlier clone had its number: CUDA
    gives numbers of graphs that are gone to new graphs.
    """

    def __init__(self) -> None:
        self._created: set[int] = set()
        self._original: dict[int, int] = {}

    def learn(self, events: Events) -> CapturedNodes:
        """Learn from events which nodes are clones; return the created nodes that are not."""
        events = events[events["node"] > 0]  # 0: CUPTI did not tell the node's number
        cloned = events[(events["what"] == CLONED) & (events["original"] > 0)]
        self._original.update(
            zip(cloned["node"].tolist(), cloned["original"].tolist(), strict=True)
        )
        created = events[events["what"] == CREATED]
        numbers, clones = created["node"].tolist(), set(cloned["node"].tolist())
        self._created.update(numbers)
        fresh = [node not in clones for node in numbers]
        for node in set(numbers) - clones:
            self._original.pop(node, None)
        kept = created[np.array(fresh, np.bool_)]
        return {name: kept[name].astype(np.int64) for name in ("time", "thread", "node")}

    def captured(self, nodes: Iterable[int]) -> dict[int, int]:
        """Return the captured node that each node descends from, if its capture was seen."""
        found = {node: self._first(node) for node in nodes}
        return {node: first for node, first in found.items() if first is not None}

    def _first(self, node: int) -> int | None:
        seen = set()
        while node in self._original and node not in seen:
            seen.add(node)
            node = self._original[node]
        return node if node in self._created and node not in seen else None
