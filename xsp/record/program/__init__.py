"""Records a program as a flat log of events, in windows of one set of kinds.

`Recorder` (recorder.py) puts hooks in place and makes windows; `Log` (log.py) is what watchers
append to; `Lottery` (window.py) draws what each window records; `LineSampler` (line_sampler.py)
samples the program's own lines, and `WorkerSampler` (worker_sampler.py) those of the processes that
it forks. `xsp.reading.program` makes a tree of a `ProgramRecord`.
"""

from xsp.record.program.line_sampler import LineSamples
from xsp.record.program.log import SKIPPED, Log, LogData, RegionFacts
from xsp.record.program.recorder import ProgramRecord, Recorder, Window
from xsp.record.program.thread_times import ThreadTime
from xsp.record.program.window import Lottery, Records
from xsp.record.program.worker_sampler import BLOCKED, IN_LOCK, WorkerSamples

__all__ = [
    "BLOCKED",
    "IN_LOCK",
    "SKIPPED",
    "LineSamples",
    "Log",
    "LogData",
    "Lottery",
    "ProgramRecord",
    "Recorder",
    "Records",
    "RegionFacts",
    "ThreadTime",
    "Window",
    "WorkerSamples",
]
