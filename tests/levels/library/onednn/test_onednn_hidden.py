"""oneDNN inside TensorFlow and XLA, whose libraries have no function that sets its mode."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import textwrap
from pathlib import Path

import polars as pl
import pytest

from xsp.provider.contract import Records
from xsp_levels.library.onednn import carrier
from xsp_levels.library.onednn.line import parse_header, parse_lines
from xsp_levels.library.onednn.provider import ClockReading, OneDnn, OneDnnRecords
from xsp_levels.library.onednn.setting import has_hidden_setting

DATA = Path(__file__).parents[3] / "data" / "onednn"
SOURCE = """
#define HIDDEN(name) asm(name) __attribute__((visibility("hidden")))
unsigned mode HIDDEN("_ZN4dnnl4implL7verboseE.0") = 4;
unsigned char asked HIDDEN("_ZN4dnnl4implL7verboseE.1") = 1;
unsigned char stamp HIDDEN("_ZN4dnnl4implL17verbose_timestampE.0");
unsigned char stamp_asked HIDDEN("_ZN4dnnl4implL17verbose_timestampE.1");
static const int version[3] = {VERSION};
const int *dnnl_version(void) __attribute__((visibility("hidden")));
const int *dnnl_version(void) { return version; }
unsigned state(void) { return mode | asked << 16 | stamp << 20 | stamp_asked << 24; }
"""
CODE = """
    import ctypes, json, sys
    from xsp_levels.library.onednn.setting import hidden_setting
    assert hidden_setting(sys.argv[1]) is None  # it is not loaded
    library = ctypes.CDLL(sys.argv[1])
    found, said = hidden_setting(sys.argv[1]), []
    for level in (2, 2, 0, 0) if found else ():
        found.set_verbose(level)
        said.append(hex(library.state()))
    print(json.dumps([found and found.version, said]))
    """


def library(folder: Path, version: str, *flags: str) -> Path:
    """Compile a library that holds the variables of a oneDNN."""
    (folder / "mode.c").write_text(SOURCE)
    path = folder / "libjax_common.so"
    command: list[str | Path] = [
        "cc",
        "-shared",
        "-fPIC",
        f"-DVERSION={version}",
        *flags,
        "-o",
        path,
    ]
    try:
        subprocess.run([*command, folder / "mode.c"], check=True)
    except FileNotFoundError:
        pytest.skip("needs a C compiler: apt-get install gcc")
    return path


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
        env={**os.environ, **environment},
    )


def test_the_mode_is_set_and_put_back_as_it_was(tmp_path: Path) -> None:
    path = library(tmp_path, "3,7,3")
    assert has_hidden_setting(str(path))
    on = hex(4 | 1 << 5 | 1 << 7 | 1 << 16 | 1 << 20 | 1 << 24)
    expected = ["3.7.3", [on, on, hex(4 | 1 << 16), hex(4 | 1 << 16)]]
    assert json.loads(run(CODE, str(path)).stdout) == expected


@pytest.mark.parametrize(
    ("version", "flags"), [("3,14,0", ()), ("3,1,0", ()), ("2,7,0", ()), ("3,7,3", ("-s",))]
)
def test_other_versions_and_stripped_files_are_left_alone(
    tmp_path: Path, version: str, flags: tuple[str, ...]
) -> None:
    path = library(tmp_path, version, *flags)
    assert json.loads(run(CODE, str(path)).stdout) == [None, []]
    assert has_hidden_setting(str(path)) == (not flags)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF\x02\x01\x01" + b"\0" * 200])
def test_a_file_that_is_no_library_has_no_setting(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "libtensorflow_cc.so.2"
    path.write_bytes(content)
    assert not has_hidden_setting(str(path))


def rows(name: str) -> pl.DataFrame:
    lines = (DATA / name).read_bytes()
    begin = ClockReading(0, int(parse_lines(lines)[0]["wall_us"][0]) * 1000)
    data = OneDnnRecords(lines, parse_header(lines), None, (begin, begin))
    return OneDnn().spans(Records(data))


def test_tensorflows_primitives_have_work_formats_and_version() -> None:
    found = rows("onednn-3.7-tensorflow.txt")
    convolution = found.filter(pl.col("name") == "convolution").row(0, named=True)
    assert convolution["attr.library"] == "oneDNN 3.7.3"
    assert convolution["attr.formats"] == ("src f32 acdb, wei f32 Acdb32a, bia f32 a, dst f32 acdb")
    assert convolution["attr.flops"] == 2 * 8 * 32 * 30 * 30 * 16 * 9
    product = found.filter(pl.col("name") == "inner_product").row(0, named=True)
    assert product["attr.flops"] == 2 * 8 * 7200 * 10
    gemm = found.filter(pl.col("name") == "gemm_api")
    assert gemm["attr.flops"].to_list() == [2 * 8 * 7200 * 10, 2 * 64**3, 2]
    assert found.filter(~pl.col("name").str.starts_with("create"))["attr.flops"].null_count() == 0


def test_xlas_products_are_rows_and_the_graphs_around_them_are_not() -> None:
    found = rows("onednn-3.7-xla.txt")
    executed = found.filter(~pl.col("name").str.starts_with("create"))
    assert executed["name"].to_list() == ["reorder", "matmul"] * 2
    assert executed["attr.flops"].to_list() == [0, 2 * 256**3] * 2


def test_doctor_says_of_each_framework_whether_its_calls_are_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    processor = tmp_path / "cpuinfo"
    processor.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_vnni\n")
    monkeypatch.setattr(carrier, "_CPUINFO", processor)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(carrier, "installed", lambda package: True)
    monkeypatch.setattr(carrier, "has_hidden_setting", lambda path: True)
    monkeypatch.setattr(carrier, "_libraries", lambda package: iter([package]))
    plain = carrier.remark({}) or ""
    assert plain.startswith("calls are seen of PyTorch and TensorFlow; of JAX where XLA was asked")
    assert plain.endswith("not of ONNX Runtime, whose kernels are MLAS's: they are its nodes")
    asked = {"XLA_FLAGS": "--xla_cpu_experimental_onednn_fusion_type=LIBRARY_FUSION_TYPE_DOT"}
    assert "TensorFlow and JAX" in (carrier.remark(asked) or "")
    assert "Eigen's" in (carrier.remark({"TF_ENABLE_ONEDNN_OPTS": "0"}) or "")
    processor.write_text("processor\t: 0\nflags\t\t: fpu avx avx2\n")
    assert "only where TF_ENABLE_ONEDNN_OPTS=1" in (carrier.remark({}) or "")
    assert carrier.remark({"TF_ENABLE_ONEDNN_OPTS": "1"}) == plain
    monkeypatch.setattr(carrier, "has_hidden_setting", lambda path: False)
    assert "ONEDNN_VERBOSE=profile_exec" in (carrier.remark({}) or "")


TENSORFLOW = """
    import json, sys
    import tensorflow as tf, xsp, polars as pl
    layer = tf.keras.layers.Conv2D(32, 3, activation="relu")
    images = tf.ones((4, 16, 16, 16))
    layer(images)
    call = tf.function(layer)
    trace = xsp.measure(lambda: call(images), levels=3, budget=2)
    trace.check()
    spans = {row["span_id"]: row for row in trace.spans.iter_rows(named=True)}
    calls = [row for row in spans.values() if row["kind"] == "call"]
    print("ours", flush=True)
    call(images)
    print(json.dumps({
        "torch": "torch" in sys.modules,
        "parents": sorted({spans[row["parent_id"]]["kind"] for row in calls}),
        "names": sorted({row["name"] for row in calls}),
        "versions": sorted({row["attributes"]["library"] for row in calls}),
        "flops": max(row["attributes"]["flops"] or 0 for row in calls),
    }))
    """


@pytest.mark.slow
def test_calls_of_tensorflow_lie_in_its_operators() -> None:
    if not carrier.installed("tensorflow"):  # without importing TensorFlow in this process
        pytest.skip("needs TensorFlow: pip install xsp[tensorflow]")
    done = run(TENSORFLOW, TF_CPP_MIN_LOG_LEVEL="3")
    ours, said = done.stdout.splitlines()  # and nothing of oneDNN's
    found = json.loads(said)
    assert (ours, found["torch"], found["parents"]) == ("ours", False, ["op"])
    assert "convolution" in found["names"]
    assert found["versions"][0].startswith("oneDNN 3.")
    assert found["flops"] == 2 * 4 * 32 * 14 * 14 * 16 * 9
