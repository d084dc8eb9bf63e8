"""Lets `python -m xsp` do what `xsp` does."""

from xsp.cli import main

if __name__ == "__main__":
    main()
