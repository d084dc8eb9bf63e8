"""Agreement: turns that rank 0 decides in, the same turns in every other rank out.

All ranks must record the same of the n-th evaluation of the k-th group: a rank that records more is
slower, and the others wait for it. Rank 0 leaves the next turn of a group for the others when it
begins the turn before, so that nobody waits in a program whose ranks go together. The first turn is
known without a word.

    rank 0    begins turn 0, leaves 1    begins turn 1, leaves 2    …
    rank 1    begins turn 0              reads 1, begins it         …
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass

from xsp.rank.channel import Channel, awaited
from xsp.rank.identity import Identity

_OVER = "over"
_PATIENCE_S = 10.0  # ranks are hardly a whole turn apart for longer, once they evaluate
_ASKED = 20  # evaluations after which it is asked again whether all is over


@dataclass(frozen=True, slots=True)
class Turn:
    """Evaluations of a group that are recorded alike.

    Attributes:
        rung: Number of the rung among those of the ladder.
        round: Round of the plan, -1 for warming up.
        evaluations: How many evaluations count.
        untimed: How many before them do not.
    """

    rung: int
    round: int
    evaluations: int
    untimed: int


class Agreement:
    """What the ranks of a program agree on.

    Args:
        identity: Which rank this is.
        channel: Where ranks leave bytes for each other.
        patience_s: How long a rank waits for a turn that rank 0 has not decided.

    Attributes:
        leads: Whether this rank decides.
        trouble: Why this rank no longer follows; empty while it does.
    """

    def __init__(
        self, identity: Identity, channel: Channel, *, patience_s: float = _PATIENCE_S
    ) -> None:
        self.leads = identity.leads
        self.trouble = ""
        self._channel, self._patience_s = channel, patience_s
        self._asked = 0
        self._over = False

    def leave(self, group: int, number: int, turn: Turn | None) -> None:
        """Leave a turn for the other ranks; None: the plan of the group is complete."""
        self._channel.put(_key(group, number), json.dumps(turn and astuple(turn)).encode())

    def turn(self, group: int, number: int) -> Turn | None:
        """Return the turn that rank 0 decided on; None if there is none for this rank."""
        if self.trouble or self._over:
            return None
        key = _key(group, number)
        found = awaited(self._channel, key, self._patience_s, given_up=self._ask)
        if found is None and not self._over:
            self.trouble = (
                f"rank 0 was more than {self._patience_s:g} s behind, or out of reach: from then "
                "on nothing was recorded in this rank"
            )
        told = json.loads(found) if found is not None else None
        return Turn(*told) if told is not None else None

    def end(self) -> None:
        """Note that this rank records nothing more."""
        if self.leads and not self._over:
            self._over = True
            self._channel.put(_OVER, b"1")

    def may_stop(self) -> bool:
        """Return whether this rank may stop watching: rank 0 may, and the others after it."""
        self.end()
        self._asked += 1
        return self._over or (self._asked % _ASKED == 0 and self._ask())

    def _ask(self) -> bool:
        self._over = self._over or self._channel.get(_OVER) is not None
        return self._over


def _key(group: int, number: int) -> str:
    return f"turn/{group}/{number}"
