"""The tree of a trace as HTML: what Jupyter shows for it. No script, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import polars as pl

from xsp.quantity import NOTHING, counted, duration, estimate, percent, removed, shorten
from xsp.trace.heading import headline, remarks
from xsp.trace.outline import Outline, Row, outline

_ROWS = 1_000
_SMALLEST = 0.001
_LONGEST_NAME = 160
# The model, its parts and theirs are open at first.
_OPEN_DEPTH = 2

_STYLE = """
.xsp{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;max-width:1100px}
.xsp p{margin:0 0 .4em}
.xsp .title{font-weight:600}
.xsp .remark{border-left:3px solid #d97706;padding-left:.6em}
.xsp .row{display:flex;gap:1em;padding:0 .3em;white-space:pre;border-radius:3px;
background:linear-gradient(90deg,rgba(59,130,246,.16) var(--share,0%),transparent var(--share,0%))}
.xsp .row:hover{outline:1px solid rgba(128,128,128,.5)}
.xsp .name{flex:1;min-width:0;overflow:hidden;text-overflow:ellipsis}
.xsp .n{flex:none;text-align:right}
.xsp .latency{width:10.5em}.xsp .share{width:4.5em}.xsp .device,.xsp .overhead{width:5.5em}
.xsp .each{width:9em}
.xsp .detail,.xsp .some,.xsp .rest,.xsp .own,.xsp .head{opacity:.65}
.xsp .below{margin-left:.55em;padding-left:.75em;border-left:1px solid rgba(128,128,128,.35)}
.xsp summary{list-style:none;cursor:pointer}
.xsp summary::-webkit-details-marker{display:none}
.xsp summary .name::before{content:"\\25B8\\00A0"}
.xsp details[open]>summary .name::before{content:"\\25BE\\00A0"}
.xsp .leaf .name::before{content:"\\00A0\\00A0"}
"""


def page_part(spans: pl.DataFrame, metadata: Mapping[str, Any]) -> str:
    """Return a trace as an HTML fragment: a tree whose branches open and close.

    Args:
        spans: Frame with the columns of `trace.spans`.
        metadata: What `trace.metadata` holds; `name`, `problems` and `levels` are used.
    """
    drawn = outline(spans, rows=_ROWS, smallest=_SMALLEST)
    parts = [
        f"<style>{_STYLE}</style>",
        f'<p class="title">{escape(headline(spans, metadata))}</p>',
        *(f'<p class="remark">{escape(remark)}</p>' for remark in remarks(metadata)),
        *_tree(drawn.rows),
        _footer(drawn),
    ]
    return f'<div class="xsp">{"".join(parts)}</div>'


def _cells(named: Mapping[str, str], columns: tuple[str, ...]) -> str:
    return "".join(f'<span class="n {name}">{named[name]}</span>' for name in columns)


def _columns(rows: tuple[Row, ...]) -> tuple[str, ...]:
    """Return the columns of numbers; that of devices only where one worked."""
    device = ("device",) if any(row.device_ns is not None for row in rows) else ()
    return ("latency", "share", *device, "overhead", "each")


def _tree(rows: tuple[Row, ...]) -> Iterator[str]:
    """Yield the rows with their branches around them; closed by depth, without recursion."""
    columns = _columns(rows)
    head = _cells({name: name for name in columns}, columns)
    yield f'<div class="row head leaf"><span class="name"></span>{head}</div>'
    depth = 0
    for row in rows:
        yield "</div></details>" * (depth - row.depth)
        depth = row.depth
        if row.parent:
            opened = " open" if depth < _OPEN_DEPTH else ""
            yield f'<details{opened}><summary>{_row(row, columns)}</summary><div class="below">'
            depth += 1
        else:
            yield _row(row, columns)
    yield "</div></details>" * depth


def _row(row: Row, columns: tuple[str, ...]) -> str:
    name, title = escape(shorten(row.name, _LONGEST_NAME)), escape(row.name[:999])
    detail = f' <span class="detail">{escape(row.detail)}</span>' if row.detail else ""
    width = min(max(row.share or 0.0, 0.0), 1.0)
    numbers = {
        "latency": _latency(row),
        "share": "" if row.share is None else escape(percent(row.share)),
        "device": "" if row.device_ns is None else duration(row.device_ns),
        "overhead": removed(row.overhead_ns, row.margin_ns),
        "each": row.each(),
    }
    classes = f"row {row.kind}" if row.parent else f"row {row.kind} leaf"
    return (
        f'<div class="{classes}" style="--share:{width:.1%}" title="{title}">'
        f'<span class="name">{name}{detail}</span>{_cells(numbers, columns)}</div>'
    )


def _latency(row: Row) -> str:
    value, margin, unit = estimate(row.latency_ns, row.margin_ns)
    if not unit:
        return NOTHING
    return f"{value} ± {margin} {unit}" if margin else f"{value} {unit}"


def _footer(drawn: Outline) -> str:
    if not drawn.cut:
        return ""
    shown = f"{counted(drawn.spans, 'span')} in {counted(len(drawn.rows), 'row')}"
    return f'<p class="rest">{shown}; trace.spans has them all</p>'
