"""The process of a `Worker`, `python -m xsp.target JOB FOLDER`, and of examination.py."""

import atexit
import os
import sys
import threading

from xsp.target import examination, part


def _end(code: int) -> None:
    """End the process as Python does, but for taking its modules apart.

    That takes PyTorch a second or two, for which the user would wait.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, runs their exit functions
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if sys.argv[1] in (examination.EXAMINE, examination.EXPORT, examination.FIND):
    _end(examination.main(*sys.argv[1:]))
_end(part.main(*sys.argv[1:]))
