"""Runs of sessions in; evaluations, and the sessions that a program made, out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from typing import Any

from xsp.provider import Evaluations
from xsp_levels.framework.onnxruntime.call import (
    Again,
    found_call,
    is_repeatable,
    repeated,
    session_of,
    subject,
)
from xsp_levels.framework.onnxruntime.entry_point import ASYNC, EntryPoint

_ASYNC = "run_async (what it does after it has returned is in no evaluation)"


class Watch:
    """Hands runs of sessions to `evaluations`, until `close`.

    Args:
        evaluations: Runs the evaluations.
        entry: Finds the runs.
        coming: Is told of each session that is about to run, and how to make the run once more;
            then that the run is over.
    """

    def __init__(
        self,
        evaluations: Evaluations,
        entry: EntryPoint,
        coming: Callable[[Any, Again | None], None],
    ) -> None:
        self._evaluations, self._entry, self._coming = evaluations, entry, coming
        entry.watcher = self
        entry.place()

    def close(self) -> None:
        """Stop watching."""
        self._entry.watcher = None
        self._entry.place()

    def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        method: str,
    ) -> Any:
        """Make a run, as an evaluation."""
        found_ns, session = monotonic_ns(), session_of(args, kwargs)
        if method == ASYNC:
            return self._begin(session, function, args, kwargs)
        if self._evaluations.by_hand:
            return function(*args, **kwargs)
        again = repeated(function, args, kwargs) if is_repeatable(method) else None
        self._coming(session, again)
        try:
            call = found_call(function, args, kwargs, method, found_ns)
            return self._evaluations.run(call)
        finally:
            self._coming(None, None)

    def made(self, session: Any, parts: Sequence[tuple[str, int, int]]) -> None:
        """Mark the parts of the making of a session."""
        for name, start_ns, end_ns in parts:
            if end_ns > start_ns:
                self._evaluations.mark(name, start_ns, end_ns, {"model": subject(session)})

    def _begin(
        self,
        session: Any,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        begin = monotonic_ns()
        result = function(*args, **kwargs)
        self._evaluations.mark(_ASYNC, begin, monotonic_ns(), {"model": subject(session)})
        return result
