"""Magics for Jupyter and IPython: `%load_ext xsp`, then `%%xsp` in a cell, `%xsp` in a line.

Example:
    Profile what a cell does, or measure one expression::

        %%xsp --levels 2
        for batch in loader:
            train(batch)

        %xsp model(x)
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.display import display

if TYPE_CHECKING:
    from xsp.trace import Trace

__all__ = ["XspMagics", "load_ipython_extension"]

_USAGE = (
    "Use: %%xsp [--levels LEVELS] [--budget SECONDS] [-o FILE] [--report], or %xsp EXPRESSION "
    "with the same options before it."
)


@magics_class
class XspMagics(Magics):
    """Profiles a cell, or measures an expression, and shows the tree in place."""

    @line_cell_magic
    def xsp(self, line: str, cell: str | None = None) -> Trace:
        """Profile a cell as `xsp.profile` does; measure an expression as `xsp.measure` does.

        The trace is the cell's result: `_` has it. `-o FILE` saves it. `--report` shows the whole
        report below.

        Raises:
            UsageError: An option is unknown or has no value, or there is nothing to run.
        """
        import xsp  # noqa: PLC0415
        from xsp.machine import check_writable  # noqa: PLC0415

        shell = self.shell
        assert shell is not None  # IPython calls magics of its shell alone
        words, options = _options(line)
        if cell is None and not words:
            raise UsageError(_USAGE)
        if cell is not None and words:
            raise UsageError(f"Unknown option ({words}). {_USAGE}")
        settings: dict[str, Any] = {"levels": options.get("--levels", "2")}
        if "-o" in options:
            try:
                check_writable(Path(options["-o"]))
            except xsp.ExportError as error:
                raise UsageError(str(error)) from None
        try:
            if "--budget" in options:
                settings["budget"] = float(options["--budget"])
            xsp.profile(**settings)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if cell is None:
            code = compile(words, "<xsp>", "eval")
            names, own = shell.user_global_ns, shell.user_ns
            trace = xsp.measure(lambda: eval(code, names, own), **settings)
        else:
            source = shell.transform_cell(cell)  # type: ignore[no-untyped-call]
            if shell.should_run_async(cell, transformed_cell=source):
                raise UsageError("%%xsp cannot await. Write `with xsp.profile() as prof:` instead.")
            file = shell.compile.cache(source)  # tracebacks and samples then show its lines
            program = compile(source, file, "exec")
            with xsp.profile(**settings, name="cell") as prof:
                exec(program, shell.user_ns)
            trace = prof.trace
        if "-o" in options:
            trace.save(options["-o"])
        if "--report" in options:
            _show_report(trace)
        return trace


def _options(line: str) -> tuple[str, dict[str, str]]:
    """Split a line into the options before an expression, and the expression."""
    options: dict[str, str] = {}
    rest = line.strip()
    while rest.startswith("-"):
        word, _, rest = rest.partition(" ")
        rest = rest.strip()
        if word == "--report":
            options[word] = ""
            continue
        if word not in ("--levels", "--budget", "-o") or not rest:
            raise UsageError(f"Unknown option, or one without a value ({word}). {_USAGE}")
        value, _, rest = rest.partition(" ")
        options[word] = shlex.split(value)[0]
        rest = rest.strip()
    return rest, options


def _show_report(trace: Trace) -> None:
    """Show the report in a frame of its own, so that its styles stay off the notebook's."""
    import tempfile  # noqa: PLC0415
    from html import escape  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        page = trace.report(Path(folder) / "report.html").read_text(encoding="utf-8")
    frame = '<iframe srcdoc="{}" style="width:100%;height:80vh;border:0" title="xsp"></iframe>'
    display({"text/html": frame.format(escape(page))}, raw=True)  # type: ignore[no-untyped-call]


def load_ipython_extension(ipython: Any) -> None:
    """Register the magics; IPython calls this for `%load_ext xsp`.

    Args:
        ipython: The running shell.
    """
    ipython.register_magics(XspMagics)
