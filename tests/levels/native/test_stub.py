from __future__ import annotations

import ctypes
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from xsp_levels.kernel.cupti import buffer as cupti_buffer
from xsp_levels.kernel.cupti import node as cupti_node
from xsp_levels.library.cuda import log as cuda_log
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
        pytest.skip(f"{reason}: run this test on Linux with an x86-64 CPU")


def test_listing_has_bytes_addresses_and_labels_and_nothing_of_the_text() -> None:
    listing = stub.read(RETURN_ARGUMENT, value=0x0102030405060708)
    assert listing.code == bytes.fromhex("4889f8c348b80807060504030201c3")
    assert listing.labels == {"same": 0, "constant": 4}


# Every listing that there is, with the names of what is filled in.
LISTINGS = {
    "cuda.log": (cuda_log._LISTING, ("state",)),
    "cupti.buffer": (cupti_buffer._LISTING, ("state",)),
    "cupti.node": (cupti_node._LISTING, ("state",)),
    "this test": (RETURN_ARGUMENT, ("value",)),
}
FILLED_IN = 0x1122334455667788  # no assembler can make it shorter than 8 bytes


def assembled(text: str, names: tuple[str, ...], folder: Path) -> bytes:
    """Return the bytes that GNU's assembler makes of a listing's instructions."""
    source = [".intel_syntax noprefix"]
    for line in stub.lines(text):
        source += [f"{line.label}:"] * bool(line.label)
        source.append(re.sub(rf"\b({'|'.join(names)})\b", str(FILLED_IN), line.instruction))
    made, code = folder / "made.o", folder / "code"
    command = ["as", "--64", "-o", str(made), "-"]
    subprocess.run(command, input="\n".join(source) + "\n", text=True, check=True)
    subprocess.run(["objcopy", "-O", "binary", "-j", ".text", str(made), str(code)], check=True)
    return code.read_bytes()


@pytest.mark.parametrize("which", LISTINGS)
def test_bytes_of_a_listing_are_those_of_its_instructions(which: str, tmp_path: Path) -> None:
    if not shutil.which("as") or not shutil.which("objcopy"):
        pytest.skip("needs GNU's assembler: apt install binutils")
    if platform.machine() != "x86_64":
        pytest.skip(f"the assembler here is one for {platform.machine()}")
    text, names = LISTINGS[which]
    listing = stub.read(text, **dict.fromkeys(names, FILLED_IN))
    assert listing.code.hex(" ") == assembled(text, names, tmp_path).hex(" ")


def test_every_listing_is_assembled() -> None:
    package = Path(stub.__file__).parents[1]
    users = {
        f"{path.parent.name}.{path.stem}"
        for path in package.rglob("*.py")
        if "stub.read(" in path.read_text()
    }
    assert users == LISTINGS.keys() - {"this test"}


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
