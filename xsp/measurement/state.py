"""State: a call in; what it changes of its arguments and its model, noticed and put back, out.

A call may write to its arguments (a cache of keys and values grows by the tokens of each call),
and to its model (running means, a list that the model appends to). Repeated, such a call is
another one each time. So what can be reached from the call is kept before the first evaluation and
compared after it. What has changed is put back into the same objects before each further
evaluation, outside of the timed part, and at the end. Where nothing changes nothing is done.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from xsp.measurement.kept import (
    PLAIN,
    KeptDict,
    KeptPart,
    children,
    keep,
    keep_attributes,
    keep_random,
)
from xsp.provider import Keeper, Kept, ModelCall, Role

ROOM_BYTES = 2 << 30  # copies of tensors and arrays that are kept for a call, at most
MOST_OBJECTS = 50_000  # objects that are looked at, at most: a tenth of a second

_Named = tuple[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One object that a call can reach, and what it was.

    Attributes:
        name: How it is reached: `past_key_values.layers.0.keys`.
        value: The object.
        cls: The class that it had: an object may change its class.
        kept: What it was.
    """

    name: str
    value: Any
    cls: type
    kept: Kept

    @property
    def key(self) -> tuple[int, type]:
        """What tells this object, and this side of it, from all others that are alive."""
        part = self.kept.value if isinstance(self.kept, KeptPart) else self.value
        return id(part), type(self.kept)


class Snapshot:
    """What is reachable from some values, as it is now; cycles and shared objects once.

    Args:
        keepers: Providers that know their frameworks' values and models.
        roots: The values, with their names.
        room_bytes: How large the copies of tensors and arrays may be together.
        known: Ids of objects that are not looked at.
        into_models: Whether models are looked into; else they are only found.

    Attributes:
        entries: The objects.
        models: The models that were found and not looked into.
        seen: Ids of all objects that were looked at.
        unread: Why some objects could not be looked at; empty if all could.
        room_bytes: What is left of the room.
    """

    def __init__(
        self,
        keepers: Sequence[Keeper],
        roots: Iterable[_Named],
        room_bytes: int = ROOM_BYTES,
        *,
        known: Iterable[int] = (),
        into_models: bool = False,
    ) -> None:
        self.entries: list[Entry] = []
        self.models: list[_Named] = []
        self.unread = ""
        self.room_bytes = room_bytes
        self.seen = set(known)
        self._keepers = keepers
        self._into_models = into_models
        self._roles: dict[type, tuple[Role, Keeper] | None] = {}
        self._alive: list[Any] = []  # ids stay theirs only as long as the objects live
        self._look(deque(roots))

    def changed(self) -> list[Entry]:
        """Return the entries that are not what they were.

        Without an object that has taken another class, and what it holds: a lazy module that has
        become an ordinary one does not work if half of it is made lazy again.
        """
        changed = [entry for entry in self.entries if self._is_changed(entry)]
        if not changed:
            return []
        others = {entry.name for entry in self.entries if type(entry.value) is not entry.cls}
        inside = tuple(f"{name}." for name in others)
        return [e for e in changed if e.name not in others and not e.name.startswith(inside)]

    def _is_changed(self, entry: Entry) -> bool:
        try:
            return entry.kept.changed()
        except Exception as error:  # noqa: BLE001  the user's objects may raise anything
            self.unread = f"looking at {entry.name} raised {type(error).__name__}: {error}"
            return False

    def _look(self, queue: deque[_Named]) -> None:
        while queue:
            name, value = queue.popleft()
            if type(value) in PLAIN or id(value) in self.seen:
                continue
            if len(self._alive) >= MOST_OBJECTS:
                self.unread = f"they hold more than {MOST_OBJECTS:,} objects"
                return
            self.seen.add(id(value))
            self._alive.append(value)
            try:
                kept = self._keep(name, value)
                inside = [*children(value, kept), *self._parts(value)]
            except Exception as error:  # noqa: BLE001  the user's objects may raise anything
                self.unread = f"looking at {name} raised {type(error).__name__}: {error}"
                continue
            self.entries += [Entry(name, value, type(value), each) for each in kept]
            self.room_bytes -= sum(each.nbytes for each in kept)
            queue.extend((f"{name}.{part}", item) for part, item in inside)

    def _keep(self, name: str, value: Any) -> list[Kept]:
        role = self._role(type(value))
        if role is not None and role[0] is Role.VALUE:
            return [role[1].keep(value, self.room_bytes)]
        if role is not None and role[0] is Role.CLOSED:
            return []
        if role is not None and not self._into_models:
            self.models.append((name, value))
            self.seen.discard(id(value))  # it is still to be looked into
            return []
        if _is_code(value):
            return []
        held = keep(value, self.room_bytes)
        return [*([] if held is None else [held]), *keep_attributes(value)]

    def _parts(self, value: Any) -> Iterable[_Named]:
        role = self._role(type(value)) if self._into_models else None
        return role[1].parts(value) if role is not None and role[0] is Role.MODEL else ()

    def _role(self, cls: type) -> tuple[Role, Keeper] | None:
        if cls not in self._roles:
            self._roles[cls] = role_of(self._keepers, cls)
        return self._roles[cls]


class State:
    """What a call changes; a context that puts everything back at its end.

    Arguments are put back as they were before the first evaluation. Of a model, what the second
    evaluation changes again is put back; what only the first one changed is how the model makes
    itself ready (masks and tables that are computed once), and stays. Parameters are never put
    back: a call that trains is meant to.

    Args:
        keepers: Providers that know their frameworks' values and models.
        call: The call, not yet evaluated.
    """

    def __init__(self, keepers: Sequence[Keeper], call: ModelCall) -> None:
        self._keepers: list[Keeper] = []
        self._random = [keep_random()]
        self._unread = ""
        for keeper in keepers:
            self._try(keeper)
        self._given = Snapshot(self._keepers, arguments_of(call))
        self._roots = [*models_of(self._keepers, call.function), *self._given.models]
        self._first = self._model = self._look_at_models(self._given.room_bytes)
        self._back: list[tuple[str, Callable[[], None]]] = []
        self._stuck: dict[str, str] = {}
        self._trained = ""
        self._looks = 0
        self._known = False

    def __enter__(self) -> State:
        return self

    def __exit__(self, *_: object) -> None:
        # After one evaluation nobody knows what the model only makes ready: all of it goes back.
        model = self._model if self._known else self._first
        self._put(self._back)
        self._put([*self._undo(self._given), *self._undo(model)])
        self._put([("random numbers", put_back) for put_back in self._random])

    @property
    def known(self) -> bool:
        """Whether enough evaluations were looked at to know what a call changes."""
        return self._known

    @property
    def stuck(self) -> str:
        """What was changed and cannot be put back, for people; empty if there is nothing."""
        return "; ".join(f"{name}, {reason}" for name, reason in self._stuck.items())

    @property
    def trained(self) -> str:
        """The first parameter that was written to; empty if there is none."""
        return self._trained

    @property
    def unread(self) -> str:
        """Why some of what may change could not be looked at; empty if all could."""
        return self._unread or self._given.unread or self._first.unread or self._model.unread

    @property
    def unsafe(self) -> str:
        """Why arguments that a call changes could not all be put back; empty if they could."""
        obstacles = ((entry.name, entry.kept.obstacle()) for entry in self._given.entries)
        return next(
            (f"{name}, {why}" for name, why in obstacles if why), self._unread or self._given.unread
        )

    @property
    def changes(self) -> str:
        """The names of the first things that are put back before each evaluation."""
        names = list(dict.fromkeys(name for name, _ in self._back))
        return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")

    @property
    def prepare(self) -> Callable[[], None] | None:
        """What to do before each evaluation: put back what changed; None: nothing."""
        return self.put_back if self._back else None

    def put_back(self) -> None:
        """Put back what the evaluations so far have been seen to change."""
        self._put(self._back)

    def look(self) -> None:
        """Compare after an evaluation; two evaluations at most are needed."""
        self._looks += 1
        changed = self._model.changed()
        self._back = [*self._undo(self._given, between=True)]
        if not changed or self._looks > 1:
            self._back += self._undo(self._model, between=True)
            self._known = True
            return
        # What the first evaluation made ready must not be mistaken for what each one changes.
        self._model = self._look_at_models(self._first.room_bytes)

    def _try(self, keeper: Keeper) -> None:
        try:
            self._random.append(keeper.keep_random())
        except Exception as error:  # noqa: BLE001  a provider must never reach the user's call
            self._unread = f"{type(keeper).__name__} raised {type(error).__name__}: {error}"
        else:
            self._keepers.append(keeper)

    def _look_at_models(self, room_bytes: int) -> Snapshot:
        return Snapshot(
            self._keepers, self._roots, room_bytes, known=self._given.seen, into_models=True
        )

    def _undo(
        self, snapshot: Snapshot, *, between: bool = False
    ) -> list[tuple[str, Callable[[], None]]]:
        """Return the ways back to what was before, by name; note what has none."""
        # Parameters and their gradients go on between evaluations, as where a program trains.
        return [
            (entry.name, self._way_back(entry))
            for entry in snapshot.changed()
            if self._note(entry) and not (between and entry.kept.trained)
        ]

    def _put(self, back: Iterable[tuple[str, Callable[[], None]]]) -> None:
        for name, put_back in back:
            try:
                put_back()
            except Exception as error:  # noqa: BLE001  the user's objects may raise anything
                why = f"which raised {type(error).__name__} when it was put back: {error}"
                self._stuck.setdefault(name, why)

    def _note(self, entry: Entry) -> bool:
        """Return whether a changed object is to be put back; if it cannot be, note why."""
        reason = self._before.get(entry.key, entry).kept.obstacle()
        if reason and entry.kept.trained:
            self._trained = self._trained or entry.name
        elif reason:
            self._stuck.setdefault(entry.name, reason)  # left whole, as the evaluation left it
        return entry.kept.trained or not reason

    def _way_back(self, entry: Entry) -> Callable[[], None]:
        """Return a call that makes an object what it was before the first evaluation."""
        first = self._before.get(entry.key)
        if first is None or first.kept is entry.kept:
            return entry.kept.put_back
        if isinstance(first.kept, KeptDict) and isinstance(entry.kept, KeptDict):
            return functools.partial(first.kept.put_back_keys, entry.kept.changed_keys())
        return first.kept.put_back

    @functools.cached_property
    def _before(self) -> dict[tuple[int, type], Entry]:
        return {entry.key: entry for entry in self._first.entries}


def arguments_of(call: ModelCall) -> Iterator[_Named]:
    """Yield the arguments of a call, by name, with those that a partial holds."""
    function = call.function
    while isinstance(function, functools.partial):
        yield from _named(function.args, function.keywords)
        function = function.func
    yield from _named(call.args, call.kwargs)


def models_of(keepers: Sequence[Keeper], function: Any) -> Iterator[_Named]:
    """Yield the models that a function is, belongs to, holds, or names.

    A function may do much besides calling a model, and what it does elsewhere is its purpose: of
    what it holds only models are looked at, in its closure, its global names, and the attributes
    of its object.
    """
    while isinstance(function, functools.partial):
        function = function.func
    for name, value in _near(function):
        with contextlib.suppress(Exception):  # a proxy of nothing yet, say, which is no model
            yield from _models_in(keepers, name, value)


def role_of(keepers: Sequence[Keeper], cls: type) -> tuple[Role, Keeper] | None:
    """Return what the objects of a class are, and to which keeper; None if to none."""
    found = ((keeper.role(cls), keeper) for keeper in keepers)
    return next(((role, keeper) for role, keeper in found if role is not None), None)


def _models_in(keepers: Sequence[Keeper], name: str, value: Any) -> list[_Named]:
    if _is_model(keepers, value):
        return [(name, value)]
    return [
        (f"{name}.{attribute}", item)
        for part in (keep_attributes(value) if not _is_code(value) else ())
        for attribute, item in part.children()
        if _is_model(keepers, item)
    ]


def _near(function: Any) -> Iterator[_Named]:
    yield "the model", function
    if inspect.ismethod(function):
        yield "self", function.__self__
        function = function.__func__
    function = inspect.unwrap(function)  # a decorated one is in the closure of its decorator
    if not inspect.isfunction(function):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            yield name, cell.cell_contents
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function's code and the functions in it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _named(args: Iterable[Any], kwargs: Any) -> Iterator[_Named]:
    yield from ((f"argument {number}", value) for number, value in enumerate(args, 1))
    yield from kwargs.items()


def _is_model(keepers: Sequence[Keeper], value: Any) -> bool:
    role = role_of(keepers, type(value))
    return role is not None and role[0] is Role.MODEL


def _is_code(value: Any) -> bool:
    return isinstance(value, type) or inspect.isroutine(value) or inspect.ismodule(value)
