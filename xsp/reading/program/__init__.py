"""Reading a program's log: events, items, steps, groups, costs, rows, a trace; pure functions.

`read_program` (read.py) is the way through: `events` pairs begins and ends; `steps` cuts training
steps by looking ahead; `regions` cuts the user's spans where they cross; `forest` puts everything
in what is around it, and subtracts what xsp added (`cost`); `group` and `naming` say what is alike;
`deep` reads windows of operators; `tree` makes rows, and `spans` the frame of a trace.
"""

from xsp.reading.program.read import ProgramTraces, read_program

__all__ = ["ProgramTraces", "read_program"]
