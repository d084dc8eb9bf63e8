"""The process of a `Worker`, `python -m xsp.target JOB FOLDER`, and of `examine`."""

import sys

from xsp.target import examination, part

if sys.argv[1] == "--examine":
    raise SystemExit(examination.main(sys.argv[2]))
raise SystemExit(part.main(*sys.argv[1:]))
