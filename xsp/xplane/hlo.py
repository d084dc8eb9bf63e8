"""Decodes a program that XLA compiled (`HloProto`) into instructions and call stacks.

The numbers of fields are those of hlo.proto and xla_data.proto in openxla/xla.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from xsp.protobuf import fields
from xsp.xplane.space import Space

Value = int | memoryview
_Fields = Mapping[int, list[Value]]

_PLANE, _PROGRAM = "/host:metadata", "Hlo Proto"  # where a file holds programs
_MODULE = 1  # a field of HloProto
_NAME, _COMPUTATIONS, _ENTRY, _FRAMES = 1, 3, 6, 17  # of HloModuleProto
_INSTRUCTIONS, _COMPUTATION_ID = 2, 5  # of HloComputationProto
_OPCODE, _SHAPE, _METADATA, _PARAMETER = 2, 3, 7, 9  # of HloInstructionProto
_ID, _OPERANDS, _CALLED = 35, 36, 38
_WINDOW, _CONVOLUTION, _PRODUCT = 15, 16, 30
_SUMMED = 1  # of DotDimensionNumbers
_MADE, _PUT_IN = 4, 8  # of ConvolutionDimensionNumbers
_AXES, _SPREAD = 1, 6  # of Window; of its WindowDimension
_OP_NAME, _FRAME = 2, 15  # of OpMetadata
_ELEMENT, _DIMENSIONS, _PARTS = 2, 3, 4  # of ShapeProto
_FILES, _FUNCTIONS, _LOCATIONS, _STACK = 1, 2, 3, 4  # of StackFrameIndexProto
_FILE, _FUNCTION, _LINE, _COLUMN = 1, 2, 3, 4  # of its FileLocation
_LOCATION, _PARENT = 1, 2  # of its StackFrame

# Element types by XLA's number, as PyTorch spells them.
_ELEMENTS = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32",
    9: "uint64", 10: "float16", 11: "float32", 12: "float64", 15: "complex64", 16: "bfloat16",
    18: "complex128", 19: "float8_e5m2", 20: "float8_e4m3fn",
}  # fmt: skip
BYTES = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4,
    "uint64": 8, "float16": 2, "float32": 4, "float64": 8, "complex64": 8, "bfloat16": 2,
    "complex128": 16, "float8_e5m2": 1, "float8_e4m3fn": 1,
}  # fmt: skip
_TUPLE = 13
_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of an array: its sizes, and its element type as PyTorch spells that."""

    sizes: tuple[int, ...]
    element: str

    @property
    def nbytes(self) -> int | None:
        """Size in bytes; None for element types of unknown size."""
        size = BYTES.get(self.element)
        for each in self.sizes:
            size = None if size is None else size * each
        return size


@dataclass(frozen=True, slots=True)
class Frame:
    """A call on the stack when an operator was traced.

    Attributes:
        function: Qualified name of the function.
        file: Its file.
        line: The line that it was at.
        column: The column at which the call there begins.
    """

    function: str
    file: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Convolution:
    """Axes of a convolution.

    Attributes:
        features: Axis of the channels of what is put in.
        made: Axis of the weights that has the channels of what is made.
        spread: Whether zeros lie between the points put in, as where it is transposed.
    """

    features: int
    made: int
    spread: bool


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of a compiled program.

    Attributes:
        name: Its name, unique in the program.
        opcode: What it is: `convolution`, `fusion`.
        op_name: Primitive that it was made for, with the scopes around; empty where none is named.
        shapes: The arrays that it makes.
        operands: Numbers of the instructions whose results it takes.
        called: Numbers of the computations that it calls.
        frame: Number of the innermost frame of its stack; 0: none.
        parameter: Of a parameter: which of the program's it is, from 0.
        summed: Of a product: axes of the first operand that are summed over.
        convolution: Of a convolution: its axes.
    """

    name: str
    opcode: str
    op_name: str
    shapes: tuple[Shape, ...]
    operands: tuple[int, ...]
    called: tuple[int, ...]
    frame: int
    parameter: int
    summed: tuple[int, ...] = ()
    convolution: Convolution | None = None


@dataclass(frozen=True, slots=True)
class Module:
    """A compiled program.

    Attributes:
        name: Its name: `jit_f`.
        computations: For each computation, by number, its instructions by number.
        entry: Number of the computation by which it begins.
        frames: Each frame with the number of its caller, by its own number.
    """

    name: str
    computations: Mapping[int, Mapping[int, Instruction]] = field(repr=False)
    entry: int
    frames: Mapping[int, tuple[Frame, int]] = field(repr=False)

    def stack(self, number: int) -> tuple[Frame, ...]:
        """Return the frames from the outermost to one with this number."""
        found: list[Frame] = []
        while number in self.frames and len(found) < len(self.frames):
            frame, number = self.frames[number]
            found.append(frame)
        return tuple(reversed(found))


def read_module(proto: bytes) -> Module:
    """Return the program that bytes of a HloProto are.

    Raises:
        ValueError: The bytes are no message, or are cut short.
    """
    module = _message(_first(_message(proto), _MODULE))
    computations = {}
    for each in module[_COMPUTATIONS]:
        of = _message(each)
        computations[_number(of, _COMPUTATION_ID)] = dict(map(_instruction, of[_INSTRUCTIONS]))
    frames = _frames(_message(_first(module, _FRAMES)))
    return Module(_text(module, _NAME), computations, _number(module, _ENTRY), frames)


def modules(space: Space) -> Iterator[Module]:
    """Yield the programs that a file holds; those that are cut short are left out."""
    plane = space.plane(_PLANE)
    for each in plane.metadata if plane is not None else ():
        program = each.stats.get(_PROGRAM)
        if isinstance(program, bytes):
            try:
                yield read_module(program)
            except ValueError:
                continue


def operands_of(module: Module) -> dict[str, list[str]]:
    """Return the names of the instructions whose results each instruction takes.

    What calls a computation and does nothing else (`call`) takes what that computation makes, and
    the computation's parameters are what the call takes.
    """
    found = {}
    for around in module.computations.values():
        for each in around.values():
            found[each.name] = [around[n].name for n in each.operands if n in around]
    for around in module.computations.values():
        for each in around.values():
            called = module.computations.get(each.called[0], {}) if each.called else {}
            if each.opcode == "call" and called:
                given = found[each.name]
                for part in called.values():
                    if part.opcode == "parameter":
                        found[part.name] = given[part.parameter : part.parameter + 1]
                used = {number for part in called.values() for number in part.operands}
                found[each.name] = [p.name for n, p in called.items() if n not in used]
    return found


def _instruction(data: Value) -> tuple[int, Instruction]:
    of = _message(data)
    metadata = _message(_first(of, _METADATA))
    return _number(of, _ID), Instruction(
        name=_text(of, _NAME),
        opcode=_text(of, _OPCODE),
        op_name=_text(metadata, _OP_NAME),
        shapes=tuple(_shapes(_first(of, _SHAPE))),
        operands=_numbers(of, _OPERANDS),
        called=_numbers(of, _CALLED),
        frame=_number(metadata, _FRAME),
        parameter=_number(of, _PARAMETER),
        summed=_numbers(_message(_first(of, _PRODUCT)), _SUMMED),
        convolution=_convolution(of) if _CONVOLUTION in of else None,
    )


def _convolution(of: _Fields) -> Convolution:
    axes = _message(_first(of, _CONVOLUTION))
    window = _message(_first(of, _WINDOW))[_AXES]
    spread = any(_number(_message(axis), _SPREAD) > 1 for axis in window)
    return Convolution(_number(axes, _PUT_IN), _number(axes, _MADE), spread)


def _shapes(data: Value) -> Iterator[Shape]:
    of = _message(data)
    if _number(of, _ELEMENT) == _TUPLE:
        for part in of[_PARTS]:
            yield from _shapes(part)
    elif element := _ELEMENTS.get(_number(of, _ELEMENT)):
        yield Shape(_numbers(of, _DIMENSIONS), element)


def _frames(index: _Fields) -> dict[int, tuple[Frame, int]]:
    files, functions = _texts(index[_FILES]), _texts(index[_FUNCTIONS])
    places = [_message(each) for each in index[_LOCATIONS]]
    found = {}
    for number, each in enumerate(index[_STACK], 1):  # numbers begin with 1
        frame = _message(each)
        at = _number(frame, _LOCATION) - 1
        place = places[at] if 0 <= at < len(places) else {}
        found[number] = (
            Frame(
                _at(functions, _number(place, _FUNCTION)),
                _at(files, _number(place, _FILE)),
                _number(place, _LINE),
                _number(place, _COLUMN),
            ),
            _number(frame, _PARENT),
        )
    return found


def _message(data: Value | bytes) -> _Fields:
    """Return the values of each field of a message, by the field's number."""
    found: dict[int, list[Value]] = defaultdict(list)
    if not isinstance(data, int):
        for number, value in fields(data):
            found[number].append(value)
    return found


def _first(message: _Fields, number: int) -> Value:
    values = message.get(number)
    return values[0] if values else _NOTHING


def _number(message: _Fields, number: int) -> int:
    value = _first(message, number)
    return value if isinstance(value, int) else 0


def _text(message: _Fields, number: int) -> str:
    return _texts([_first(message, number)])[0]


def _texts(values: Sequence[Value]) -> list[str]:
    return ["" if isinstance(v, int) else bytes(v).decode(errors="replace") for v in values]


def _at(texts: Sequence[str], number: int) -> str:
    return texts[number - 1] if 0 < number <= len(texts) else ""


def _numbers(message: _Fields, number: int) -> tuple[int, ...]:
    """Return the numbers of a repeated field, which may be packed."""
    found: list[int] = []
    for value in message.get(number, ()):
        found += [value] if isinstance(value, int) else _packed(value)
    return tuple(found)


def _packed(data: memoryview) -> Iterator[int]:
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number = shift = 0
