"""Renders the page from an HTML template and values.

Every value goes through the template, which escapes all but `Markup`. What stands in a script
goes through `in_script`, the one place that knows how HTML ends a script. And the browser is told
the hashes of the page's scripts, by a content security policy, and executes no other.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE = Path(__file__).parent
# Inside of a script HTML knows nothing but these: they end it, or change how it ends.
_TAGS = re.compile(r"<(?=/script|script|!--)", flags=re.IGNORECASE)


def in_script(text: str) -> Markup:
    r"""Return a JavaScript or JSON text so that no part of it ends the script it stands in.

    `<` may stand in strings, regular expressions and comments there, where `\x3c` is the same.
    JSON knows `\u003c` instead, which is the same for JavaScript as well.

    >>> str(in_script('"</script><!-- <b>"'))
    '"\\u003c/script>\\u003c!-- <b>"'
    """
    return Markup(_TAGS.sub(r"\\u003c", text))


def in_json(value: Any) -> Markup:
    """Return a value as JSON for a script element."""
    return in_script(json.dumps(value, ensure_ascii=False, allow_nan=False))


def page(scripts: list[str], template: str, **shown: Any) -> str:
    """Return the page.

    Args:
        scripts: The scripts that the page may execute, in order.
        template: Name of the page's template.
        **shown: What the template shows.
    """
    texts = [in_script(script) for script in scripts]
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in texts)
    style = Markup((_HERE / "style" / "page.css").read_text(encoding="utf-8"))
    return (
        _environment()
        .get_template(template)
        .render(scripts=texts, hashes=Markup(hashes), style=style, **shown)
    )


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415

    environment = Environment(
        loader=FileSystemLoader(_HERE / "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["in_json"] = in_json
    return environment


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
