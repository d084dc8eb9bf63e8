"""Times of a vendor's clock in, the same instants on the measurement's clock out.

The module that reads a vendor's clock and the measurement's clock one right after the other
makes the `Alignment` from its readings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Alignment:
    """The offset between two clocks: it changes evenly from one instant to another.

    A vendor's clock may count something else than nanoseconds: only instants are converted, then,
    and durations are differences of converted instants.

    Attributes:
        times: Two instants of the vendor's clock, in whatever that clock counts.
        offsets: What is added to the vendor's time at each of the two instants.
        error_ns: By how much a converted time can be wrong, as far as the readings tell.
    """

    times: tuple[int, int] = (0, 0)
    offsets: tuple[int, int] = (0, 0)
    error_ns: int = 0

    def convert(self, vendor: Integers) -> Integers:
        """Return instants of the vendor's clock in nanoseconds of the measurement's clock.

        >>> Alignment((0, 100), (1000, 1010)).convert(np.array([0, 50, 100])).tolist()
        [1000, 1055, 1110]
        """
        first, last = self.offsets
        # relative to the first instant: a float has no room for nanoseconds since 1970
        since = (vendor - self.times[0]).astype(np.float64)
        span = max(1, self.times[1] - self.times[0])
        drift = np.rint(since * ((last - first) / span)).astype(np.int64)
        return vendor + first + drift
