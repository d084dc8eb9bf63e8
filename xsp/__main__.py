"""Runs the command line: `python -m xsp` is the command `xsp`."""

from xsp.cli import main

if __name__ == "__main__":
    main()
