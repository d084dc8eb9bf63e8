from __future__ import annotations

import pytest

from xsp_levels.arming import undone_on_failure


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3)])
def test_what_was_armed_comes_off_and_the_exception_goes_on(error: BaseException) -> None:
    armed = ["hook"]
    with pytest.raises(type(error)) as raised, undone_on_failure(armed.clear):
        raise error
    assert raised.value is error
    assert armed == []


def test_what_is_armed_whole_stays() -> None:
    armed = ["hook"]
    with undone_on_failure(armed.clear):
        pass
    assert armed == ["hook"]
