from __future__ import annotations

import json

import pytest

from xsp.page.html import in_json, in_script

TRAPS = ("</script>", "</SCRIPT >", "<!--", "<script>", "<!--<script>", "</scr</script>ipt>")


@pytest.mark.parametrize("trap", TRAPS)
def test_nothing_in_a_script_ends_the_script(trap: str) -> None:
    text = str(in_json({"name": trap}))
    assert not any(tag in text.lower() for tag in ("</script", "<script", "<!--"))
    assert json.loads(text) == {"name": trap}


def test_other_signs_stay_as_they_are() -> None:
    code = "for (let i = 0; i < n; i++) if (a<b && c>d) x = '&amp;';"
    assert str(in_script(code)) == code


def test_numbers_that_json_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        in_json(float("nan"))
