"""Containers and objects that a call may change in, what each held and the way back out.

What a container holds is kept by reference: a list of a thousand tensors costs a thousand
references. Overwritten contents of tensors are their framework's business (`xsp.provider.Keeper`),
and of NumPy's arrays that of `KeptArray`.

>>> counts = {"calls": 1}
>>> kept = keep(counts, 0)
>>> counts["calls"] += 1
>>> kept.changed(), kept.put_back(), counts, kept.changed()
(True, None, {'calls': 1}, False)
"""

from __future__ import annotations

import operator
import random
import sys
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterable
from types import MemberDescriptorType, NoneType, SimpleNamespace
from typing import Any

import numpy as np

from xsp.provider import Kept

# Values that nobody can change: two of them that are equal are the same.
PLAIN = frozenset({NoneType, bool, int, float, complex, str, bytes, type(Ellipsis)})
_OPEN_LIBRARY_TYPES = (SimpleNamespace, UserDict, UserList)
_ABSENT = object()


def keep(
    value: Any, room_bytes: int
) -> KeptDict | KeptSequence | KeptSet | KeptArray | KeptState | None:
    """Return what a container, an array or a random-number generator is now.

    None if it is nothing of that sort, or cannot be changed. An array is copied if the copy takes
    at most `room_bytes`.
    """
    if isinstance(value, dict):
        return KeptDict(value, OrderedDict if isinstance(value, OrderedDict) else dict)
    if isinstance(value, (list, deque, bytearray)):
        return KeptSequence(value)
    if isinstance(value, set):
        return KeptSet(value)
    if isinstance(value, np.ndarray):
        return KeptArray(value, room_bytes) if value.flags.writeable else None
    return _random(value)


def keep_attributes(value: Any) -> list[KeptDict | KeptSlots]:
    """Return what the attributes of an object of a program's or a library's class are now.

    Attributes that are computed are not asked for: nothing of the object's own code runs.
    Objects of Python's own library (threads, locks, files, loggers) are not looked into.
    """
    cls = type(value)
    if str(cls.__module__).partition(".")[0] in sys.stdlib_module_names and not isinstance(
        value, (dict, list, set, *_OPEN_LIBRARY_TYPES)
    ):
        return []
    slots = _slots(cls)
    kept: list[KeptDict | KeptSlots] = [KeptSlots(value, slots)] if slots else []
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return kept
    # A class has a mapping proxy, which is not looked into either.
    return [*kept, KeptDict(attributes, dict)] if isinstance(attributes, dict) else kept


def keep_random() -> Callable[[], None]:
    """Return a function that puts the random numbers of Python and NumPy back to where they are."""
    put: list[Callable[[], None]] = [KeptState(random, random.getstate, random.setstate).put_back]
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        kept = KeptState(numpy_random, numpy_random.get_state, numpy_random.set_state)
        put.append(kept.put_back)

    def put_back() -> None:
        for each in put:
            each()

    return put_back


class _Whole:
    """What most have in common: no copy, no training, nothing in the way of putting back."""

    nbytes = 0
    trained = False

    def obstacle(self) -> str:
        """Return an empty text: it can be put back."""
        return ""


class KeptDict(_Whole):
    """What a dictionary held, or an object in its attributes.

    Args:
        value: The dictionary.
        methods: The class whose methods change it: a subclass may do more than that in its own.
    """

    def __init__(self, value: dict[Any, Any], methods: type[dict[Any, Any]]) -> None:
        self.value = value
        self.held = dict(value)
        self._methods = methods

    def children(self) -> Iterable[tuple[str, Any]]:
        """Return what the dictionary held, with the key of each value as text."""
        return ((str(key) if type(key) in PLAIN else "…", v) for key, v in self.held.items())

    def changed(self) -> bool:
        """Return whether a key came, went, moved or got another value."""
        return not _same_items(self.value, self.held) or not _same_items(
            self.value.values(), self.held.values()
        )

    def changed_keys(self) -> list[Any]:
        """Return the keys that came, went or got another value."""
        return [
            key
            for key in dict.fromkeys((*self.held, *self.value))
            if not _same(self.value.get(key, _ABSENT), self.held.get(key, _ABSENT))
        ]

    def put_back(self) -> None:
        """Give the dictionary what it held, in its order."""
        self.put_back_keys(self.changed_keys())
        if not _same_items(self.value, self.held):
            self._methods.clear(self.value)
            for key, value in self.held.items():
                self._methods.__setitem__(self.value, key, value)

    def put_back_keys(self, keys: Iterable[Any]) -> None:
        """Give these keys what they held, and take away those that were not there."""
        for key in keys:
            if key in self.held:
                self._methods.__setitem__(self.value, key, self.held[key])
            elif key in self.value:
                self._methods.__delitem__(self.value, key)


class KeptSlots(_Whole):
    """What the slots of an object held.

    Args:
        value: The object.
        slots: Its slots: their names and descriptors.
    """

    def __init__(self, value: Any, slots: dict[str, MemberDescriptorType]) -> None:
        self.value = value
        self._slots = slots
        self.held = self._now()

    def children(self) -> Iterable[tuple[str, Any]]:
        """Return what the slots held."""
        return ((name, value) for name, value in self.held.items() if value is not _ABSENT)

    def changed(self) -> bool:
        """Return whether a slot has another value."""
        return not _same_items(self._now().values(), self.held.values())

    def put_back(self) -> None:
        """Give each slot what it held."""
        for name, now in self._now().items():
            held = self.held[name]
            if held is not _ABSENT:
                self._slots[name].__set__(self.value, held)
            elif now is not _ABSENT:
                self._slots[name].__delete__(self.value)

    def _now(self) -> dict[str, Any]:
        return {name: _read(slot, self.value) for name, slot in self._slots.items()}


class KeptSequence(_Whole):
    """What a list, a deque or a bytearray held."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.held = value[:] if isinstance(value, bytearray) else list(value)

    def children(self) -> Iterable[tuple[str, Any]]:
        """Return the items, with their index as text."""
        return () if isinstance(self.held, bytearray) else _numbered(self.held)

    def changed(self) -> bool:
        """Return whether an item came, went or was replaced."""
        return not _same_items(self.value, self.held)

    def put_back(self) -> None:
        """Give the sequence its items again."""
        if isinstance(self.value, deque):
            deque.clear(self.value)
            deque.extend(self.value, self.held)
        else:
            (list if isinstance(self.value, list) else bytearray).__setitem__(
                self.value, slice(None), self.held
            )


class KeptSet(_Whole):
    """What a set held."""

    def __init__(self, value: set[Any]) -> None:
        self.value = value
        self.held = set(value)

    def children(self) -> Iterable[tuple[str, Any]]:
        """Return nothing: what is in a set is hashed, and so does not change."""
        return ()

    def changed(self) -> bool:
        """Return whether an element came or went."""
        return set.__ne__(self.value, self.held)

    def put_back(self) -> None:
        """Give the set its elements again."""
        set.clear(self.value)
        set.update(self.value, self.held)


class KeptArray(_Whole):
    """What a NumPy array held.

    Args:
        value: The array.
        room_bytes: How large a copy may be; changes of a larger array are not noticed.
    """

    def __init__(self, value: np.ndarray[Any, Any], room_bytes: int) -> None:
        self.value = value
        self.held = value.copy() if value.nbytes <= room_bytes else None
        self.nbytes = 0 if self.held is None else value.nbytes

    def children(self) -> Iterable[tuple[str, Any]]:
        """Return nothing: numbers hold nothing."""
        return ()

    def changed(self) -> bool:
        """Return whether the array was written to, or has another shape."""
        now, held = self.value, self.held
        return held is not None and (now.shape != held.shape or now.tobytes() != held.tobytes())

    def obstacle(self) -> str:
        """Return why the array cannot be put back; empty if it can."""
        if self.held is None:
            return f"whose {self.value.nbytes / 1e9:.2g} GB are too many to keep a copy of"
        return "which has another shape" if self.value.shape != self.held.shape else ""

    def put_back(self) -> None:
        """Write the numbers into the same array again."""
        if self.held is not None and self.value.shape == self.held.shape:
            self.value[...] = self.held


class KeptState(_Whole):
    """What an object was that hands out its state and takes it back.

    Args:
        value: The object.
        get: Returns its state.
        put: Takes a state that `get` returned.
    """

    def __init__(self, value: Any, get: Callable[[], Any], put: Callable[[Any], object]) -> None:
        self.value = value
        self._get, self._put = get, put
        self._state = get()

    def children(self) -> Iterable[tuple[str, Any]]:
        """Return nothing: the state is the object's own."""
        return ()

    def changed(self) -> bool:
        """Return whether the state is another one."""
        # As text: a state may hold arrays, of which no two are simply equal.
        return repr(self._get()) != repr(self._state)

    def put_back(self) -> None:
        """Give the object its state again."""
        self._put(self._state)


KeptPart = KeptDict | KeptSlots | KeptSequence | KeptSet | KeptArray | KeptState


def children(value: Any, kept: Iterable[Kept]) -> Iterable[tuple[str, Any]]:
    """Yield what a value holds, by name: what is kept of it, and the items of a tuple."""
    if isinstance(value, tuple):
        yield from _numbered(value)
    for each in kept:
        if isinstance(each, KeptPart):
            yield from each.children()


def _random(value: Any) -> KeptState | None:
    if isinstance(value, random.Random):
        return KeptState(value, value.getstate, value.setstate)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None and isinstance(value, numpy_random.Generator):
        bits = value.bit_generator
        return KeptState(value, lambda: bits.state, lambda state: setattr(bits, "state", state))
    return None


def _numbered(items: Iterable[Any]) -> Iterable[tuple[str, Any]]:
    return ((str(number), item) for number, item in enumerate(items))


def _slots(cls: type) -> dict[str, MemberDescriptorType]:
    """Return the slots that Python code gave a class and its parents, by name."""
    return {
        name: member
        for each in cls.__mro__
        if "__slots__" in vars(each)
        for name, member in vars(each).items()
        if isinstance(member, MemberDescriptorType)
    }


def _read(slot: MemberDescriptorType, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return _ABSENT


def _same_items(now: Any, then: Any) -> bool:
    if len(now) != len(then):
        return False
    return all(map(operator.is_, now, then)) or all(map(_same, now, then))


def _same(now: Any, then: Any) -> bool:
    return now is then or (type(now) is type(then) and type(now) in PLAIN and bool(now == then))
