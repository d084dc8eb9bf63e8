"""The command line of xsp.

`main` (app.py) runs the command that the arguments name: `profile`, `record`, `import` (in
reading.py), `export` and `jaeger` have modules of their own, with options in option.py; `sweep` and
`zoo` have a folder, and so have the commands that read traces and answer: `show`, `analyze`,
`compare` and `report`. terminal.py prints, exit_code.py has the exit codes. Only click is
imported before a command runs.
"""

from xsp.show.cli.app import main

__all__ = ["main"]
