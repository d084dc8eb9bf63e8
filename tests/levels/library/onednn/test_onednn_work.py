from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.library.onednn.work import formats, work

FOUR = "src:f32::blocked:a::f0 wei:f32::blocked:a::f0 bia:f32::blocked:a::f0 dst:f32::blocked:a::f0"
TWO = "src_f32::blocked:abcd:f0 dst_bf16::blocked:acdb:f0"


@pytest.mark.parametrize(
    ("primitive", "problem", "auxiliary", "flops"),
    [
        ("convolution", "mb2_ic3oc4_ih8oh6kh3sh1dh0ph0_iw8ow6kw3sw1dw0pw0", "", 2 * 2 * 36 * 108),
        ("convolution", "g2mb1_ic4oc4_ih1oh1kh1_iw5ow5kw1", "", 2 * 5 * 4 * 2),
        ("convolution", "mb1_ic1oc1_id4od2kd3_ih4oh2kh3_iw4ow2kw3", "", 2 * 8 * 27),
        ("convolution", "mb1_ic2oc3_iw9ow7kw3", "", 2 * 7 * 3 * 2 * 3),
        ("deconvolution", "mb1_ic2oc3_ih4oh8kh2_iw4ow8kw2", "", 2 * 16 * 6 * 4),
        ("matmul", "8x16:16x4", "", 1024),
        ("matmul", "6x1x8x16:1x5x16x4", "", 30 * 1024),
        ("inner_product", "mb8ic64ih7iw7oc10", "", 2 * 8 * 64 * 49 * 10),
        ("rnn", "l1t16mb4sic128slc64dhc128dic128", "alg:vanilla_lstm", 2 * 16 * 4 * 4 * 128 * 192),
        (
            "rnn",
            "l1t1mb1sic2slc2dhc2dic2",
            "alg:vanilla_gru direction:bidirectional_concat",
            2 * 2 * 3 * 2 * 4,
        ),
        ("pooling", "mb1ic2_ih4oh2kh3_iw4ow2kw3", "", 8 * 9),
        ("binary", "2x3:1x3", "", 6),
        ("reorder", "4x16x32x32", "", 0),
        ("eltwise", "4x16", "alg:eltwise_relu", None),
        ("something_new", "4x16", "", None),
    ],
)
def test_operations_follow_from_the_warning(
    primitive: str, problem: str, auxiliary: str, flops: int | None
) -> None:
    assert work(primitive, problem, "", auxiliary).flops == flops


@pytest.mark.parametrize(
    ("primitive", "problem", "tensors", "size"),
    [
        ("convolution", "mb2_ic3oc4_ih8oh6kh3_iw8ow6kw3", FOUR, 4 * (384 + 108 + 4 + 288)),
        ("matmul", "8x16:16x4", FOUR, 4 * (128 + 64 + 4 + 32)),
        ("inner_product", "mb8ic64oc10", FOUR, 4 * (512 + 640 + 10 + 80)),
        ("reorder", "4x16x32x32", TWO, 65536 * 6),
        ("reorder", "16", "src:s4::blocked:a::f0 dst:s8::blocked:a::f0", 24),
        ("pooling", "mb1ic2_ih4oh2kh3_iw4ow2kw3", TWO, 32 * 4 + 8 * 2),
        ("binary", "2x3:1x3", "src:f32::b:a::f0 src:f32::b:a::f0 dst:f32::b:a::f0", 60),
        ("concat", "2x3:2x5", "src:f32::b:a::f0 src:f32::b:a::f0 dst:f32::b:a::f0", 128),
        ("sum", "2x3", "src:f32::b:a::f0 src:f32::b:a::f0 dst:f32::b:a::f0", 72),
        ("batch_normalization", "mb2ic3ih4iw5", "data_f32::blocked:abcd:f0", 480),
        ("softmax", "8x10", "src:f32::b:a::f0 dst:f32::b:a::f0", 640),
        ("convolution", "mb2_ic3oc4_ih8oh6kh3_iw8ow6kw3", "src:new_type::b:a::f0", None),
        ("rnn", "l1t1mb1sic2slc2dhc2dic2", "src_layer:f32::b:a::f0", None),
    ],
)
def test_bytes_are_those_of_the_tensors(
    primitive: str, problem: str, tensors: str, size: int | None
) -> None:
    assert work(primitive, problem, tensors, "alg:vanilla_rnn").tensor_bytes == size


@given(st.text(), st.text(), st.text())
def test_nothing_that_is_printed_stops_it(problem: str, tensors: str, auxiliary: str) -> None:
    for primitive in ("convolution", "matmul", "rnn", "concat", "eltwise", "binary"):
        work(primitive, problem, tensors, auxiliary)
    formats(tensors)
