from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import unhurried

from xsp_levels.library.onednn.line import LINE, parse_header, parse_lines

DATA = Path(__file__).parents[3] / "data" / "onednn"
RECORDED = (DATA / "onednn-3.13-profile-timestamps.txt").read_bytes()
WITHOUT_TIME = (DATA / "onednn-3.13-exec.txt").read_bytes()

CONVOLUTION = (
    b"cpu,convolution,jit:avx2,forward_inference,src_f32::blocked:acdb:f0 "
    b"wei_f32::blocked:Acdb16a:f0 bia_undef::undef::f0 dst_f32::blocked:acdb:f0,,"
    b"alg:convolution_direct,mb8_ic64oc64_ih56oh56kh3sh1dh0ph1_iw56ow56kw3sw1dw0pw1"
)
STAMP = b"1693533460193.346924"
# As each version prints one and the same call; 2.x never had timestamps before 2.6.
SPELLINGS = {
    "1.8": b"dnnl_verbose,exec," + CONVOLUTION + b",1.18213\n",
    "2.7": b"onednn_verbose," + STAMP + b",exec," + CONVOLUTION + b",1.18213\n",
    "3.1": b"onednn_verbose," + STAMP + b",primitive,exec," + CONVOLUTION + b",1.18213\n",
    "3.13": b"onednn_verbose,v1," + STAMP + b",primitive,exec," + CONVOLUTION + b",1.18213\n",
}
REORDER = (
    b"onednn_verbose,v1,1693533460272.416992,primitive,exec,cpu,reorder,simple:any,undef,"
    b"src:f32::blocked:a::f0 dst:f32::blocked:a::f0,,,16,0.052002\n"
)


@pytest.mark.parametrize("version", SPELLINGS)
def test_every_version_tells_the_same(version: str) -> None:
    frame, lost = parse_lines(SPELLINGS[version])
    assert lost == 0
    row = frame.row(0, named=True)
    assert row["operation"] == "exec"
    assert row["primitive"] == "convolution"
    assert row["implementation"] == "jit:avx2"
    assert row["prop_kind"] == "forward_inference"
    assert row["auxiliary"] == "alg:convolution_direct"
    assert row["problem_desc"].startswith("mb8_ic64oc64_ih56")
    assert row["duration_us"] == 1182
    assert row["wall_us"] == (None if version == "1.8" else 1693533460193347)


@pytest.mark.parametrize("version", SPELLINGS)
def test_every_version_is_taken_out_of_what_stands_around_it(version: str) -> None:
    text = b"50 % " + SPELLINGS[version] + b"done\n"
    assert LINE.sub(b"", text) == b"50 % done\n"


def test_recorded_lines_are_all_taken_and_all_calls_understood() -> None:
    for recorded in (RECORDED, WITHOUT_TIME):
        assert LINE.sub(b"", recorded) == b""
        frame, lost = parse_lines(recorded, parse_header(recorded).fields)
        assert lost == 0
        calls = len(re.findall(rb",(?:exec|create\w*:\w+),", recorded))
        assert frame.height == calls > 40
        assert frame["problem_desc"].null_count() == 0


def test_fields_of_a_newer_version_are_found_by_the_headers_names() -> None:
    header = (
        b"onednn_verbose,v2,primitive,info,template:timestamp,operation,engine,stream,primitive,"
        b"implementation,prop_kind,memory_descriptors,attributes,auxiliary,problem_desc,exec_time,"
        b"energy\n"
    )
    line = (
        b"onednn_verbose,v2,1693533460272.416992,primitive,exec,cpu,3,reorder,simple:any,undef,"
        b"src dst,,,16x4,0.5,77.5\n"
    )
    frame, lost = parse_lines(line, parse_header(header).fields)
    assert lost == 0
    assert frame.select("primitive", "problem_desc", "duration_us").row(0) == (
        "reorder",
        "16x4",
        500,
    )
    assert LINE.fullmatch(line)


@pytest.mark.parametrize("keep", range(20, len(REORDER) - 1, 7))
def test_a_line_cut_in_half_never_takes_what_follows_it(keep: int) -> None:
    text = REORDER[:keep] + b"hello from another thread\n" + REORDER
    assert LINE.sub(b"", text) == REORDER[:keep] + b"hello from another thread\n"


@pytest.mark.parametrize(
    "line",
    [
        b"primitive,create:dispatch,convolution,cpu,convolution,jit:avx2,undef,src:f32,,alg:x,"
        b"mb1ic2oc3,unsupported datatype,src/cpu/x64/jit.cpp:88",
        b"primitive,create:check,reorder,cpu,reorder,simple:any,undef,src,,,16,bad,1,x.cpp:3",
        b"primitive,exec:check,primitive,unused primitive execution argument (80),x.cpp:136",
        b"graph,exec,cpu,100002,conv_post_ops,conv;relu,,in0_f32:0:strided:undef:1x2,fpm:strict,"
        b"larger_partition_kernel_t,dnnl_backend,0.5",
        b"graph,compile,cpu,100002,conv_post_ops,conv;relu,,in0_f32:0,fpm:strict,x,y,0.5",
    ],
)
def test_what_is_no_primitive_is_neither_a_call_nor_a_loss(line: bytes) -> None:
    frame, lost = parse_lines(b"onednn_verbose,v1,1693533460272.4," + line + b"\n" + REORDER)
    assert (frame["primitive"].to_list(), lost) == (["reorder"], 0)


@unhurried
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.sampled_from([REORDER, *SPELLINGS.values(), b"onednn_verbose,v1,", b",", b"\n"]),
            st.text(",0123456789.exec:v\n", max_size=30).map(str.encode),
        )
    )
)
def test_arbitrary_bytes_around_lines_come_out_equal(pieces: list[bytes]) -> None:
    written = b"".join(pieces)
    taken = b"".join(LINE.findall(written))
    rest = LINE.sub(b"", written)
    assert len(taken) + len(rest) == len(written)
    assert LINE.sub(b"", taken) == b""
    frame, lost = parse_lines(taken)
    assert frame.height + lost <= taken.count(b"\n")
    parse_lines(written)  # nothing at all may stop it
