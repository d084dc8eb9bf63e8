"""Parses messages of the loggers of cuBLAS, cuBLASLt and cuDNN into calls. Pure.

Messages have the form of cuBLAS 13.4 and cuDNN 9.26:

    I! cuBLAS (v13.4.1) function cublasStatus_t cublasSgemm_v2(cublasHandle_t, …) called:
    i!  m: type=int; val=10
    i! Time: … Thread=140653198236544; … StreamId=POINTER (IN HEX:0x(nil)) (defaultStream)

cuBLAS sends each of these lines as a message of its own. cuBLASLt sends the function, and
`A=0X100 Adesc=[type=R_32F rows=128 …] … algo=[algoId=67 …] …`. cuBLAS itself calls functions of
cuBLASLt for one data type, such as `cublasLtTSTMatmul`: they tell how the call of cuBLAS is
computed. cuDNN sends one message with lines of the form
`    n: type=int; val=1;`, and after many a call another one, with a line `status:`; in between it
tells of calls that it makes of itself, some of which have no end.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

from xsp_levels.library.cuda.log import CUBLAS, CUDNN, LT_FUNCTION, LT_MESSAGE, Message

_CUBLAS = re.compile(r"I! (cuBLAS) \(v([\d.]+)\) function (?:\w+ )?(\w+)\(")
_CUDNN = re.compile(r"([Cc]uDNN) \(v(\d+)[^)]*\) function (\w+)\(\) called:")
_VALUE = re.compile(r"^(?:i!)?( *)([\w\[\]]+): type=[^;\n]*; val=([^;\n]*)")
# Opens a scope: the lines that follow and are indented deeper.
_SCOPE = re.compile(r"^( *)(\w+): type=\w+:$")
_ENDED = re.compile(r"\0 *(?:status: type=cudnnStatus_t|Info: Traceback)")
_STREAM = re.compile(r"StreamId=POINTER \(IN HEX:0x(\(nil\)|0x[0-9a-fA-F]+)\)")
_PAIR = re.compile(r"(\w+)=(\[[^\]]*\]|\S+)")
_POINTER = re.compile(r"POINTER|^0[xX]|NULL_PTR|addr=")
_NUMBERED = re.compile(r" ?\(-?\d+\)$")
_TYPED = re.compile(r"cublasLt[A-Z]{3}Matmul$")  # TST, HSH, SSS, DDD …: types of A, compute, C
# Functions that compute; others create, set, query and destroy objects.
_COMPUTES = re.compile(
    r"cublas(?!Create|Destroy|Set|Get|Logger|Lt(?!Matmul$|MatrixTransform$)|Xt)\w+"
    r"|cudnn(?!Create|Destroy|Set(?!Tensor$)|Get|Find|Query|Restore|Build|Graph)"
    r"(BackendExecute|BackendPopulateCudaGraph|FusedOpsExecute|\w*(?:Forward|Backward|Inference)\w*"
    r"|\w+Tensor(?:Ex)?|TransformFilter|ReorderFilterAndBias|CTCLoss\w*|Im2Col)"
)
_LIBRARIES = {"cuBLAS": "cuBLAS", "CuDNN": "cuDNN", "cuDNN": "cuDNN"}


@dataclass(frozen=True, slots=True)
class CudaCall:
    """One call, as the library's logger told it.

    Attributes:
        library: Name and version of the library.
        function: Name of the function.
        start_ns: Time of the first message, right after the call began.
        end_ns: Time of a message about the call's end; None without such a message.
        thread: The kernel's number of the thread, `threading.get_native_id()`.
        values: Values of parameters, by name, without pointers.
        stream: Address of the CUDA stream; None if no message told the stream.
    """

    library: str
    function: str
    start_ns: int
    thread: int
    end_ns: int | None = None
    values: dict[str, str] = field(default_factory=dict)
    stream: int | None = None


def calls(messages: Iterable[Message]) -> list[CudaCall]:
    """Return the calls among messages whose functions compute, by start."""
    return sorted(
        (call for call in _all_calls(messages) if _COMPUTES.fullmatch(call.function)),
        key=lambda call: call.start_ns,
    )


def _all_calls(messages: Iterable[Message]) -> Iterator[CudaCall]:
    """Yield each call after its last message; messages of one thread are in order."""
    open_calls: dict[tuple[int, int], CudaCall] = {}
    nested: defaultdict[int, list[CudaCall]] = defaultdict(list)  # of cuDNN, by thread
    functions: dict[int, str] = {}
    latest: dict[int, int] = {}  # which library each thread has called last
    for message in messages:
        key = (message.thread, message.origin)
        if message.origin == LT_FUNCTION:
            functions[message.thread] = message.text
        elif message.origin == LT_MESSAGE:
            function = functions.pop(message.thread, "")
            pairs: dict[str, str] = dict(_PAIR.findall(message.text))
            values = {name: value for name, value in pairs.items() if not _POINTER.search(value)}
            stream = _address(pairs["stream"]) if "stream" in pairs else None
            told = CudaCall(
                "cuBLASLt", function, message.time_ns, message.thread, values=values, stream=stream
            )
            if _TYPED.match(told.function):
                around = (message.thread, CUBLAS)
                if latest.get(message.thread) == CUBLAS and around in open_calls:
                    # A call of cuBLAS with the algorithm that ran, instead of the one asked for.
                    call = open_calls[around]
                    algorithm = told.values.get("algo")
                    if algorithm is None or call.values.get("algo", "").startswith("["):
                        open_calls[around] = call
                    else:
                        open_calls[around] = replace(
                            call, values={**call.values, "algo": algorithm}
                        )
                continue
            latest[message.thread] = LT_MESSAGE
            yield told
        elif begun := _begun(message):
            latest[message.thread] = message.origin
            if message.origin == CUDNN:
                yield from _told_by_cudnn(nested[message.thread], begun, message)
                continue
            if key in open_calls:
                yield open_calls[key]
            open_calls[key] = begun
        elif key in open_calls:
            open_calls[key] = _with_line(open_calls[key], message.text)
    yield from chain(open_calls.values(), *nested.values())


def _told_by_cudnn(
    under_way: list[CudaCall], told: CudaCall, message: Message
) -> Iterator[CudaCall]:
    """Note a call that begins; yield one that ends, and what began in it and told of no end."""
    if _ENDED.search(message.text) is None:
        under_way.append(told)
        return
    for at in reversed(range(len(under_way))):
        if under_way[at].function == told.function:
            ended, *inside = under_way[at:]
            del under_way[at:]
            yield replace(ended, end_ns=message.time_ns)
            yield from inside
            return


def _begun(message: Message) -> CudaCall | None:
    pattern = {CUBLAS: _CUBLAS, CUDNN: _CUDNN}.get(message.origin)
    match = pattern.match(message.text) if pattern else None
    if match is None:
        return None
    library = f"{_LIBRARIES[match[1]]} {_version(match[2])}"
    known = message.number if message.origin == CUDNN else None
    call = CudaCall(library, match[3], message.time_ns, message.thread, stream=known)
    return _with_line(call, message.text.replace("\0", "\n"))


def _with_line(call: CudaCall, text: str) -> CudaCall:
    found = dict(_values(text))
    stream = _STREAM.search(text)
    if not found and not stream:
        return call
    known = call.stream if stream is None else _address(stream[1])
    return replace(call, values={**call.values, **found}, stream=known)


def _values(text: str) -> Iterator[tuple[str, str]]:
    """Yield parameters and values without pointers: `m`, or `xDesc.dimA` inside a scope."""
    scope, depth = "", -1
    for line in text.splitlines():
        if opened := _SCOPE.match(line):
            depth, scope = len(opened[1]), f"{opened[2]}."
        elif match := _VALUE.match(line):
            if len(match[1]) <= depth:
                scope, depth = "", -1
            if not _POINTER.search(match[3]):
                yield scope + match[2], _NUMBERED.sub("", match[3].strip())


def _address(text: str) -> int:
    return 0 if text == "(nil)" else int(text, 16)


def _version(text: str) -> str:
    """Return a version with points; cuDNN writes its version as one number.

    >>> _version("92600"), _version("13.4.1")
    ('9.26.0', '13.4.1')
    """
    if "." in text:
        return text
    number = int(text)
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
