from __future__ import annotations

import ctypes
import importlib.util
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider.contract import Request
from xsp.provider.packing import pack, unpack
from xsp_levels.library.cuda import provider as cuda_library
from xsp_levels.library.cuda.log import messages
from xsp_levels.library.cuda.provider import Cublas, Cudnn
from xsp_levels.native import stub

CALLS = Request(frozenset({Kind.CALL}))


def real(name: str) -> Any:
    """Load one of the libraries that PyTorch's CUDA build installs."""
    if reason := stub.unsupported():
        pytest.skip(f"{reason}: run this test on Linux with an x86-64 CPU")
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in Path(folder).glob(f"*/lib/{name}.so.*"):
            return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    pytest.skip(f"needs {name}: pip install torch, of a build for CUDA")


@pytest.fixture
def cublas() -> Any:
    real("libcublasLt")
    return real("libcublas")


@pytest.fixture
def cudnn() -> Any:
    for other in ("libcublasLt", "libcublas"):
        real(other)
    return real("libcudnn")


def said(provider: Cublas | Cudnn, call: Any) -> list[str]:
    provider.start(SystemClock(), CALLS)
    try:
        call()
    finally:
        records = provider.stop()
    assert (records.dropped, records.warnings) == (0, ())
    return [message.text for message in messages(records.data.content)]


def multiply(cublas: Any) -> None:
    one = ctypes.byref(ctypes.c_float(1))
    place = ctypes.c_void_p(0x100)
    cublas.cublasSgemm_v2(None, 0, 1, 10, 20, 30, one, place, 10, place, 20, one, place, 10)


def lt_matmul(lt: Any) -> None:
    lt.cublasLtGetVersion()
    description, layout = ctypes.c_void_p(), ctypes.c_void_p()
    lt.cublasLtMatmulDescCreate(ctypes.byref(description), 68, 0)
    sizes = ctypes.c_uint64(8), ctypes.c_uint64(8), ctypes.c_int64(8)
    lt.cublasLtMatrixLayoutCreate(ctypes.byref(layout), 0, *sizes)


def test_a_call_of_the_real_cublas_becomes_a_row(cublas: Any) -> None:
    provider = Cublas()
    provider.start(SystemClock(), CALLS)
    multiply(cublas)
    rows = provider.spans(provider.stop())
    assert rows["name"].to_list() == ["cublasSgemm"]
    assert rows["thread"].to_list() == [threading.get_ident()]
    assert rows["attr.problem"].to_list() == ["m10 n20 k30 NT"]
    assert rows["attr.flops"].to_list() == [12000]
    assert rows["attr.library"][0].startswith("cuBLAS ")


def test_a_call_of_the_real_cudnn_becomes_a_row(cudnn: Any) -> None:
    provider, tensor = Cudnn(), ctypes.c_void_p()
    cudnn.cudnnCreateTensorDescriptor(ctypes.byref(tensor))
    cudnn.cudnnSetTensor4dDescriptor(tensor, 0, 0, 1, 3, 32, 32)
    provider.start(SystemClock(), CALLS)
    one = ctypes.byref(ctypes.c_float(1))
    cudnn.cudnnAddTensor(None, one, tensor, None, one, tensor, None)
    rows = provider.spans(provider.stop())
    assert rows["name"].to_list() == ["cudnnAddTensor"]
    assert rows["attr.problem"].to_list() == ["biasDesc[1,3,32,32] srcDestDesc[1,3,32,32]"]
    assert rows["attr.placement"].to_list() == ["ends"]  # for it says that it has failed
    cudnn.cudnnDestroyTensorDescriptor(tensor)


@pytest.mark.usefixtures("cublas")
def test_cublaslt_calls_back_and_does_not_print(capfd: pytest.CaptureFixture[str]) -> None:
    lt = cuda_library.find("libcublasLt")
    assert lt is not None
    provider = Cublas()
    provider.start(SystemClock(), CALLS)
    lt.cublasLtLoggerSetMask(31)  # without a GPU only the others than those we ask for are said
    lt_matmul(lt)
    texts = [message.text for message in messages(provider.stop().data.content)]
    assert "cublasLtMatrixLayoutCreate" in texts
    assert any("type=R_32F rows=8 cols=8 ld=8" in text for text in texts)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("cublas")
def test_afterwards_nobody_is_called_back(
    cublas: Any, cudnn: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    lt = cuda_library.find("libcublasLt")
    for provider in (Cublas(), Cudnn()):
        said(provider, lambda: None)
        multiply(cublas)
        lt_matmul(lt)
        cudnn.cudnnCreateTensorDescriptor(ctypes.byref(ctypes.c_void_p()))
        log = provider._log
        assert log is not None
        assert log.take() == (b"", 0)
    assert capfd.readouterr() == ("", "")
    before = ctypes.c_void_p()
    cublas.cublasGetLoggerCallback(ctypes.byref(before))
    assert before.value is None


@pytest.mark.forks
def test_a_forked_child_is_not_observed(cublas: Any) -> None:
    provider = Cublas()
    provider.start(SystemClock(), CALLS)
    read_end, write_end = os.pipe()
    if (child := os.fork()) == 0:
        before = ctypes.c_void_p()
        cublas.cublasGetLoggerCallback(ctypes.byref(before))
        os.write(write_end, b"quiet" if before.value is None else b"loud")
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answer:
        assert answer.read() == b"quiet"
    multiply(cublas)
    assert provider.spans(provider.stop()).height == 1


@pytest.fixture
def with_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(cuda_library, "_has_driver", lambda: True)
    for variable in (*cuda_library.CUBLAS_VARIABLES, *cuda_library.CUDNN_VARIABLES):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.usefixtures("with_driver")
def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_library, "find", lambda name: None)
    monkeypatch.setattr(cuda_library, "shipped", lambda name: name == "libcublas")
    assert Cublas().unavailable() is None
    assert "cuDNN" in (Cudnn().unavailable() or "")
    monkeypatch.setenv("CUBLASLT_LOG_LEVEL", "5")
    assert "CUBLASLT_LOG_LEVEL" in (Cublas().unavailable() or "")
    monkeypatch.setattr(cuda_library, "_has_driver", lambda: False)
    assert "driver" in (Cublas().unavailable() or "")


@pytest.mark.parametrize(
    ("library", "names"),
    [
        ("libcublas", ["cublasLoggerConfigure", "cublasSetLoggerCallback"]),
        ("libcublas", ["cublasGetLoggerCallback"]),
        ("libcublasLt", ["cublasLtLoggerSetCallback", "cublasLtLoggerSetFile"]),
        ("libcublasLt", ["cublasLtLoggerSetMask"]),
        ("libcudnn", ["cudnnSetCallback", "cudnnGetCallback"]),
    ],
)
def test_the_real_libraries_export_what_is_called(library: str, names: list[str]) -> None:
    loaded = real("libcublasLt") and real("libcublas") and real(library)
    for name in names:
        assert hasattr(loaded, name), name


def test_records_are_kept_as_bytes_and_make_the_same_rows(cublas: Any) -> None:
    provider = Cublas()
    provider.start(SystemClock(), CALLS)
    multiply(cublas)
    kept = provider.stop()
    unpacked = unpack(provider, pack(provider, kept))
    assert (unpacked.dropped, unpacked.warnings) == (kept.dropped, kept.warnings)
    rows = provider.spans(kept)
    assert rows.height
    assert provider.spans(unpacked).equals(rows)
