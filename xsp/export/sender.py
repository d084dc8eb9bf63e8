"""The sender: one chunk after the other, repeated and split as OTLP says, and counted."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace

from xsp.export.answer import SEE_SERVER, Answer, Verdict
from xsp.export.client import Client
from xsp.export.diagnosis import diagnosed
from xsp.export.endpoint import Endpoint
from xsp.export.protobuf import Chunk, split

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_JITTER = 0.25
_MOST_REASONS = 3
# In less time than this a look at the port finds nothing out.
_SHORTEST_LOOK_S = 0.05


class Sender:
    """Sends chunks through a client and counts their spans.

    Attributes:
        accepted: Spans that the server took.
        rejected: Spans that it said no to.
        reasons: What it said, each with what to do about it.
        closed: Whether it has shown that it accepts nothing.
        ambiguous: Whether some request was accepted in part.
    """

    def __init__(self, client: Client, endpoint: Endpoint) -> None:
        self._client = client
        self._endpoint = endpoint
        self.accepted = 0
        self.rejected = 0
        self.reasons: dict[str, str] = {}
        self.closed = False
        self.ambiguous = False

    def send(self, chunk: Chunk) -> tuple[Chunk, ...]:
        """Return what of a chunk was not accepted; nothing if all of it was.

        One that is too large is sent in halves, down to single spans.
        """
        if self.closed:
            return (chunk,)
        answer = self._ask(chunk.body)
        if answer.verdict is Verdict.TOO_LARGE:
            parts = split(chunk)
            if len(parts) > 1:
                return tuple(left for part in parts for left in self.send(part))
        return () if self._count(chunk, answer) else (chunk,)

    def note(self, message: str, remedy: str) -> None:
        """Note why something was not accepted; of many reasons the first and the last are kept."""
        self.reasons.setdefault(message, remedy)
        if len(self.reasons) > _MOST_REASONS:
            del self.reasons[list(self.reasons)[-2]]

    def _count(self, chunk: Chunk, answer: Answer) -> bool:
        """Count the spans of a chunk; return whether all were accepted."""
        rejected = 0
        if answer.verdict is Verdict.ACCEPTED:
            rejected = min(answer.rejected, chunk.spans)
            self.accepted += chunk.spans - rejected
            self.ambiguous |= 0 < rejected < chunk.spans
        elif answer.verdict in (Verdict.REFUSED, Verdict.TOO_LARGE):
            rejected = chunk.spans
        self.rejected += rejected
        self.closed = answer.verdict is Verdict.CLOSED
        self._note_answer(answer, rejected)
        return answer.verdict is Verdict.ACCEPTED and not rejected

    def _note_answer(self, answer: Answer, rejected: int) -> None:
        if answer.verdict is not Verdict.ACCEPTED:
            self.note(answer.message, answer.remedy)
        elif rejected:
            words = f": {answer.message}" if answer.message else " and does not say why"
            self.note(f"rejected some spans of a request{words}", SEE_SERVER)
        elif answer.message:
            self.note(f"says: {answer.message}", "")

    def _ask(self, body: bytes) -> Answer:
        """Return the last answer to a request that is repeated as long as there is time."""
        deadline = time.monotonic() + self._endpoint.timeout_s
        pauses = _pauses()
        known: Answer | None = None
        while True:
            answer = self._client.send(body, max(deadline - time.monotonic(), 0.001))
            if not answer.answered:
                left_s = deadline - time.monotonic()
                if known is None or left_s > _SHORTEST_LOOK_S:
                    known = diagnosed(answer, self._endpoint, left_s)
                answer = known
            if answer.verdict is not Verdict.RETRY:
                return answer
            wait_s = answer.wait_s or next(pauses)
            left_s = deadline - time.monotonic()
            if wait_s >= left_s:
                return self._given_up(answer, left_s)
            time.sleep(wait_s)

    def _given_up(self, answer: Answer, left_s: float) -> Answer:
        limit = f"timeout of {self._endpoint.timeout_s:g} s"
        rest = f" (tried until the {limit})"
        if answer.wait_s:
            rest = (
                f", and asks to wait {answer.wait_s:.3g} s, "
                f"but {max(0.0, left_s):.2g} s are left of the {limit}"
            )
        return replace(answer, verdict=Verdict.CLOSED, message=answer.message + rest)


def _pauses() -> Iterator[float]:
    """Yield seconds to wait before each repetition: doubling, with jitter, without end."""
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s * random.uniform(1 - _JITTER, 1 + _JITTER)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
