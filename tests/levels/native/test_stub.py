from __future__ import annotations

import ctypes

import pytest

from xsp_levels.native import stub

RETURN_ARGUMENT = """
twice:      not a label, for something follows
same:
  48 89 f8    mov rax, rdi
  c3          ret
constant:
  48 b8 <value>  mov rax, value
  c3          ret
"""


@pytest.fixture
def supported() -> None:
    if reason := stub.unsupported():
        pytest.skip(reason)


def test_listing_has_bytes_addresses_and_labels_and_nothing_of_the_text() -> None:
    listing = stub.read(RETURN_ARGUMENT, value=0x0102030405060708)
    assert listing.code == bytes.fromhex("4889f8c348b80807060504030201c3")
    assert listing.labels == {"same": 0, "constant": 4}


def test_address_that_is_not_given_is_an_error() -> None:
    with pytest.raises(KeyError):
        stub.read(RETURN_ARGUMENT)


@pytest.mark.usefixtures("supported")
def test_installed_code_runs() -> None:
    code = stub.install(stub.read(RETURN_ARGUMENT, value=1 << 40))
    function = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)
    assert function(code["same"])(12345) == 12345
    assert function(code["constant"])(0) == 1 << 40


@pytest.mark.usefixtures("supported")
def test_installed_code_cannot_be_written_to() -> None:
    code = stub.install(stub.read(RETURN_ARGUMENT, value=0))
    with open("/proc/self/maps") as maps:
        rights = [
            line.split()[1]
            for line in maps
            if int(line.split("-")[0], 16) <= code["same"] < int(line.split()[0].split("-")[1], 16)
        ]
    assert rights == ["r-xp"]


def test_other_processors_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    reason = stub.unsupported()
    assert reason is not None
    assert "aarch64" in reason


def test_address_of_a_foreign_function_is_where_it_is() -> None:
    function = ctypes.CDLL(None).getpid
    call = ctypes.CFUNCTYPE(ctypes.c_int)(stub.address_of(function))
    assert call() == function()
