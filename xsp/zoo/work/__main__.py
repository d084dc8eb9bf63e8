"""The process of a task: `python -m xsp.zoo.work JOB`."""

import sys

from xsp.zoo.work import part

part.main(sys.argv[1])
