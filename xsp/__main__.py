"""Runs the command line: `python -m xsp` is the command `xsp`."""

from xsp.show.cli import main

if __name__ == "__main__":
    main()
