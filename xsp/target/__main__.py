"""The process of a `Worker`, `python -m xsp.target JOB FOLDER`, and of examination.py."""

import sys

from xsp.target import examination, part

if sys.argv[1] in (examination.EXAMINE, examination.EXPORT, examination.FIND):
    raise SystemExit(examination.main(*sys.argv[1:]))
raise SystemExit(part.main(*sys.argv[1:]))
