"""The process of a `Worker`, `python -m xsp.target JOB FOLDER`, and of `examine` and `exported`."""

import sys

from xsp.target import examination, part

if sys.argv[1] in (examination.EXAMINE, examination.EXPORT):
    raise SystemExit(examination.main(*sys.argv[1:]))
raise SystemExit(part.main(*sys.argv[1:]))
