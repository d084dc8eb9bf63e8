"""The process of a `Worker`: `python -m xsp.target JOB FOLDER`."""

import sys

from xsp.target.part import main

raise SystemExit(main(*sys.argv[1:]))
