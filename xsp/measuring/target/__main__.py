"""The process of a `Worker`, `-m xsp.measuring.target FOLDER SPEAK WAIT`, and of examination.py."""

import sys

from xsp.measuring.target import examination, part

if sys.argv[1] in (examination.EXAMINE, examination.EXPORT, examination.FIND):
    raise SystemExit(examination.main(*sys.argv[1:]))
raise SystemExit(part.main(sys.argv[1], *map(int, sys.argv[2:])))
