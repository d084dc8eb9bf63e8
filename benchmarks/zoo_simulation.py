"""How long a zoo of internet scale takes on a cluster, and what breaks first, simulated.

10,000 models at 8 batch sizes on 64 machines, event by event, by the rules of
`xsp zoo run --ray`: a machine has one task at a time, and gets the next when the driver has the
last result; one result at most waits on a machine while the next is measured; the driver takes one
result after the other; what is left of a task goes on elsewhere when its machine is lost, and the
measurement that was under way is made again.

The durations of measurements are drawn from those of `--results FOLDER`, or from a lognormal
distribution as wide as that of a zoo that was measured (SPREAD).

    python benchmarks/zoo_simulation.py [--results results/] [--models 10000] [--machines 64]
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from xsp.zoo.results import read_results

BATCHES = 8
DRIVER_S = 0.012  # of the driver for each result: received, written durably, told
TRACE_BYTES = 221_000  # on levels 1 and 2, the mean of those models
BACK_S = 600.0  # after which a machine that was lost is back
# Of a measurement's seconds: median, and standard deviation of the logarithm between models and,
# within a model, between batches; of the 126 models of zoo.toml, levels 1 and 2, a budget of 3 s.
SPREAD = (7.1, 0.30, 0.24)

Task = list[float]  # seconds of each of its measurements, loading included


@dataclass(slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        end_s: When the driver had the last result.
        use_pct: Share of the machines' time that went into results.
        tail_s: From when the first machine had nothing more to do to the end.
        waiting: Most results that waited for the driver at once.
        driver_pct: Share of the time that the driver was busy.
        losses: How often a machine was lost.
    """

    end_s: float
    use_pct: float
    tail_s: float
    waiting: int
    driver_pct: float
    losses: int


class Run:
    """A run of tasks on machines.

    Args:
        tasks: The tasks, in the order in which they are handed out.
        machines: How many machines.
        driver_s: Seconds of the driver for each result.
        hours: Mean hours after which a machine is lost; infinite: never.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        machines: int,
        driver_s: float = DRIVER_S,
        hours: float = math.inf,
    ) -> None:
        self.queue = deque(deque(task) for task in tasks)
        self.work_s = sum(map(sum, tasks))
        self.machines, self.driver_s, self.mean_s = machines, driver_s, 3600 * hours
        self.random = random.Random(1)
        self.driver_free_s = self.driver_busy_s = 0.0
        self.waiting = self.losses = 0
        self.idle_s: list[float] = []  # when machines had nothing more to do
        self.idle: list[int] = []  # those machines
        # What happens: when, to which machine, the task it has, when its last result was taken; a
        # machine that has no task is back.
        self.events: list[tuple[float, int, deque[float], float]] = []
        self.fails_s = [self.lifetime() for _ in range(machines)]

    def outcome(self) -> Outcome:
        """Let it run, and return what came of it."""
        for machine in range(self.machines):
            self.hand(machine, 0.0)
        while self.events:
            now, machine, task, taken_s = heapq.heappop(self.events)
            if not task:
                self.hand(machine, now)
            elif now > self.fails_s[machine]:
                self.lose(machine, task, now)
            else:
                task.popleft()
                self.receive(machine, task, now, taken_s)
        end = self.driver_free_s
        return Outcome(
            end,
            100 * self.work_s / (end * self.machines),
            end - min(self.idle_s),
            self.waiting,
            100 * self.driver_busy_s / end,
            self.losses,
        )

    def hand(self, machine: int, now: float) -> None:
        """Hand the next task to a machine."""
        if self.queue:
            self.begin(machine, self.queue.popleft(), now, now)
        else:
            self.idle_s.append(now)
            self.idle.append(machine)

    def begin(self, machine: int, task: deque[float], now: float, taken_s: float) -> None:
        """Let a machine begin the next measurement of its task."""
        heapq.heappush(self.events, (now + task[0], machine, task, taken_s))

    def receive(self, machine: int, task: deque[float], now: float, taken_s: float) -> None:
        """Let the driver take a result, and the machine go on when there is room for the next."""
        self.waiting = max(self.waiting, math.ceil((self.driver_free_s - now) / self.driver_s))
        self.driver_free_s = max(now, self.driver_free_s) + self.driver_s
        self.driver_busy_s += self.driver_s
        if task:
            self.begin(machine, task, max(now, taken_s), self.driver_free_s)
        else:
            self.hand(machine, self.driver_free_s)

    def lose(self, machine: int, task: deque[float], now: float) -> None:
        """Take a machine away for a while; what is left of its task is handed out next.

        That it is lost is noticed when its result does not come.
        """
        self.losses += 1
        back = max(now, self.fails_s[machine] + BACK_S)
        self.fails_s[machine] = back + self.lifetime()
        heapq.heappush(self.events, (back, machine, deque(), back))
        self.queue.appendleft(task)
        if self.idle:
            self.hand(self.idle.pop(), now)

    def lifetime(self) -> float:
        """Return after how many seconds a machine is lost."""
        return self.random.expovariate(1 / self.mean_s) if self.mean_s < math.inf else math.inf


def drawn(models: int, source: Callable[[random.Random], Task]) -> list[Task]:
    """Return tasks, the same each time."""
    seeded = random.Random(0)
    return [source(seeded) for _ in range(models)]


def distributed(seeded: random.Random) -> Task:
    """Return a task whose durations are spread as those that were measured."""
    median, between, within = SPREAD
    model = median * math.exp(seeded.gauss(0, between))
    return [model * math.exp(seeded.gauss(0, within)) for _ in range(BATCHES)]


def measured(folder: Path) -> Callable[[random.Random], Task]:
    """Return what draws models of results that were measured, and batches of each."""
    frame = read_results(folder).drop_nulls("took_s").group_by("model").agg("took_s")
    models = [list(seconds) for seconds in frame["took_s"]]
    means = [math.log(statistics.fmean(each)) for each in models]
    spread = [[math.log(each / statistics.fmean(model)) for each in model] for model in models]
    print(
        f"{folder}: {len(models)} models; seconds of a measurement: median "
        f"{math.exp(statistics.median(means)):.1f}, standard deviation of the logarithm "
        f"{statistics.pstdev(means):.2f} between models, "
        f"{statistics.pstdev([each for model in spread for each in model]):.2f} within"
    )
    return lambda seeded: seeded.choices(seeded.choice(models), k=BATCHES)


def told(what: str, outcome: Outcome) -> None:
    """Print a line of a table."""
    print(
        f"{what:44} {outcome.end_s / 3600:6.2f} h {outcome.use_pct:6.1f} % "
        f"{outcome.tail_s / 60:6.1f} min {outcome.waiting:6} {outcome.driver_pct:6.1f} % "
        f"{outcome.losses:6}"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path)
    parser.add_argument("--models", type=int, default=10_000)
    parser.add_argument("--machines", type=int, default=64)
    options = parser.parse_args()
    source = measured(options.results) if options.results else distributed
    tasks, machines = drawn(options.models, source), options.machines
    results = len(tasks) * BATCHES
    print(
        f"{len(tasks):,} models at {BATCHES} batches: {sum(map(sum, tasks)) / 3600:,.0f} machine "
        f"hours, {results:,} results, {results * TRACE_BYTES / 1e9:.1f} GB of traces\n"
    )
    print(f"{'':44} {'takes':>8} {'in use':>8} {'tail':>10} {'queue':>6} {'driver':>8} {'lost':>6}")
    told(f"{machines} machines", Run(tasks, machines).outcome())
    longest = sorted(tasks, key=sum, reverse=True)
    told("the longest models first", Run(longest, machines).outcome())
    slow = [*tasks[:-1], [300.0] * BATCHES]
    told("the last model takes 40 min", Run(slow, machines).outcome())
    told("the same, the longest first", Run([slow[-1], *longest], machines).outcome())
    for hours in (24, 4):
        what = f"a machine is lost every {hours} h of its own"
        told(what, Run(tasks, machines, hours=hours).outcome())
    for milliseconds in (50, 120, 250):
        what = f"the driver takes {milliseconds} ms for a result"
        told(what, Run(tasks, machines, milliseconds / 1000).outcome())
    for many in (256, 1024):
        told(f"{many} machines", Run(tasks, many).outcome())


if __name__ == "__main__":
    main()
