"""Writes a trace as the HTML fragment that Jupyter shows.

The fragment has no script and loads nothing. A trace's file may come from a stranger, and
Jupyter executes scripts: every value goes through `Markup.format`, which escapes all but `Markup`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl
from markupsafe import Markup

from xsp.text import counted, duration, estimate, printable, shorten
from xsp.trace.heading import DOT, noise, top_lines, top_warnings, unmarked, warning_lines
from xsp.trace.outline import outline
from xsp.trace.row import Row

_ROWS = 400
_LONGEST_NAME = 160
# Attributes that are shown when the pointer rests on a row, which may stand for several spans.
_TOLD = (
    *("phase", "input_shapes", "input_dtypes", "output_shapes", "parameter_bytes", "peak_bytes"),
    *("library", "implementation", "problem", "formats", "flops", "tensor_bytes"),
    *("calls", "least_ns", "most_ns"),
)
_OPEN_DEPTH = 2  # branches above this depth are open at first

_STYLE = Markup("""
.xsp{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;max-width:1100px}
.xsp p{margin:0 0 .4em}
.xsp .title{font-weight:600}
.xsp .problem{border-left:3px solid #d97706;padding-left:.6em}
.xsp .row{display:flex;gap:1em;padding:0 .3em;white-space:pre;border-radius:3px;
background:linear-gradient(90deg,rgba(59,130,246,.16) var(--share,0%),transparent var(--share,0%))}
.xsp .row:hover{outline:1px solid rgba(128,128,128,.5)}
.xsp .name{flex:1;min-width:0;overflow:hidden;text-overflow:ellipsis}
.xsp .n{flex:none;text-align:right}
.xsp .time,.xsp .step,.xsp .device{width:6em}.xsp .share{width:3em}
.xsp .slowest{color:#d97706}
.xsp .detail,.xsp .some,.xsp .rest,.xsp .own,.xsp .head{opacity:.65}
.xsp .below{margin-left:.55em;padding-left:.75em;border-left:1px solid rgba(128,128,128,.35)}
.xsp summary{list-style:none;cursor:pointer}
.xsp summary::-webkit-details-marker{display:none}
.xsp summary .name::before{content:"\\25B8\\00A0"}
.xsp details[open]>summary .name::before{content:"\\25BE\\00A0"}
.xsp .leaf .name::before{content:"\\00A0\\00A0"}
""")


_PAGE = Markup('<div class="xsp"><style>{}</style><p class="title">{}</p>{}{}{}{}{}</div>')
_MORE = Markup('<details class="rest"><summary>{}</summary>{}</details>')
_NEXT = Markup("<p>Look next:</p>{}")
_CHECK = Markup('<p class="rest">{}</p>')
_SUMMARY = Markup("<p>{}</p>")
_WARNING = Markup('<p class="problem">{}</p>')
_FOOTER = Markup('<p class="rest">{}; trace.spans has them all</p>')
_CELL = Markup('<span class="n {}">{}</span>')
_HEAD = Markup('<div class="row head leaf"><span class="name"></span>{}</div>')
_ROW = Markup(
    '<div class="row {kind}{leaf}" style="--share:{width:.1%}" title="{title}">'
    '<span class="name">{name}{detail}</span>{cells}</div>'
)
_DETAIL = Markup(' <span class="detail">{}</span>')
_SLOWEST = Markup(' <span class="slowest">◀ slowest layer</span>')
_BRANCH = Markup('<details{}><summary>{}</summary><div class="below">')
_OPEN, _LEAF = Markup(" open"), Markup(" leaf")
_END = Markup("</div></details>")
_NOTHING = Markup("")


def page_part(
    spans: pl.DataFrame, metadata: Mapping[str, Any], *, advice: Sequence[tuple[str, str]] = ()
) -> str:
    """Return a trace as an HTML fragment: a tree whose branches open and close.

    Args:
        spans: Frame with the columns of `trace.spans`.
        metadata: `trace.metadata`, of which `name`, `warnings` and `levels` are used.
        advice: What to look at next: a finding each, and the command that checks it.
    """
    drawn = unmarked(outline(spans, rows=_ROWS), metadata)
    title, *summary = (DOT.join(parts) for parts in top_lines(spans, metadata))
    rough = noise(spans)
    gravest, more = top_warnings(metadata, rough=bool(rough))
    warnings = _NOTHING.join(_WARNING.format(line) for line in (rough, *gravest) if line)
    if more:
        every = _NOTHING.join(_WARNING.format(line) for line in warning_lines(metadata))
        warnings += _MORE.format(counted(more, "more warning"), every)
    tree = _NOTHING.join(_tree(drawn.rows, spans))
    found = _NOTHING.join(_SUMMARY.format(said) + _CHECK.format(check) for said, check in advice)
    below = _NEXT.format(found) if found else _NOTHING
    above = _NOTHING.join(map(_SUMMARY.format, summary))
    footer = _FOOTER.format(drawn.contents) if drawn.more else _NOTHING
    return str(_PAGE.format(_STYLE, title, above, warnings, tree, below, footer))


def _cells(named: Mapping[str, str], columns: tuple[str, ...]) -> Markup:
    return _NOTHING.join(_CELL.format(name, named[name]) for name in columns)


def _tree(rows: tuple[Row, ...], spans: pl.DataFrame) -> Iterator[Markup]:
    """Yield the rows inside of their branches; without recursion, as call stacks can be deep."""
    # The columns; times per step and of devices only where some row has them.
    step = ("step",) if any(row.step_ns is not None for row in rows) else ()
    device = ("device",) if any(row.device_ns is not None for row in rows) else ()
    columns = ("time", "share", *step, *device)
    head = {"time": "time", "share": "%", "step": "per step", "device": "device"}
    yield _HEAD.format(_cells(head, columns))
    depth = 0
    for row in rows:
        yield _END * (depth - row.depth)
        depth = row.depth
        if row.parent:
            # The branch is closed by the first row that is not deeper.
            opened = _OPEN if depth < _OPEN_DEPTH else _NOTHING
            yield _BRANCH.format(opened, _row(row, columns, _told(row, spans)))
            depth += 1
        else:
            yield _row(row, columns, _told(row, spans))
    yield _END * depth


def _told(row: Row, spans: pl.DataFrame) -> str:
    """Return name, path and attributes of a row's first span, line by line."""
    if row.first is None:
        return row.name
    span = spans.row(row.first, named=True)
    attributes = span["attributes"] or {}
    known = [(name, attributes.get(name)) for name in _TOLD]
    lines = [f"{name}: {_value(name, value)}" for name, value in known if value is not None]
    value, margin, unit = estimate(row.latency_ns, row.margin_ns, row.most_ns)
    lines += [f"time: {value} ± {margin} {unit}"] if margin else []
    lines += [f"not exact: {', '.join(each.words for each in row.inexact)}"] if row.inexact else []
    lines += [f"overhead removed: {row.removed()}"] if row.removed() else []
    return "\n".join((row.name, printable(span["path"]), *map(printable, lines)))


def _value(name: str, value: object) -> str:
    if isinstance(value, float):
        return duration(value) if name.endswith("_ns") else f"{value:,g}"
    if isinstance(value, list):
        return ", ".join(
            "\u00d7".join(map(str, item)) if isinstance(item, list) else str(item) for item in value
        )
    return f"{value:,}" if isinstance(value, int) else str(value)


def _row(row: Row, columns: tuple[str, ...], told: str = "") -> Markup:
    said = "  ".join(filter(None, (row.detail, row.told)))
    numbers = {
        "time": duration(row.latency_ns),
        "share": row.percents(),
        "step": "" if row.step_ns is None else duration(row.step_ns),
        "device": duration(row.device_ns) if row.device_ns else "",
    }
    return _ROW.format(
        kind=row.kind,
        leaf=_NOTHING if row.parent else _LEAF,
        width=min(max(row.share or 0.0, 0.0), 1.0),
        title=(told or row.name)[:999],
        name=shorten(row.name, _LONGEST_NAME),
        detail=(_DETAIL.format(said) if said else _NOTHING) + (_SLOWEST if row.slowest else ""),
        cells=_cells(numbers, columns),
    )
