from __future__ import annotations

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.kernel.kernel_name import full_name, short_name

MANGLED = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillF"
    "unctorIfEESt5arrayIPcLm1EEEEviT0_T1_"
)
FULL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
    "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
)


def test_mangled_names_are_read() -> None:
    try:
        ctypes.CDLL("libstdc++.so.6")
    except OSError:
        pytest.skip("there is no libstdc++")
    assert full_name(MANGLED) == FULL
    assert short_name(full_name(MANGLED)) == "vectorized_elementwise_kernel"


@pytest.mark.parametrize(
    "name", ["sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32", "_Z?"]
)
def test_other_names_stay_as_they_are(name: str) -> None:
    assert full_name(name) == name


@pytest.mark.parametrize(
    ("full", "short"),
    [
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm>(Params)", "Kernel2"),
        ("void (anonymous namespace)::softmax<float>(float*)", "softmax"),
        ("cudnn::ops::nchwToNhwcKernel<float, float, float, false>(int)", "nchwToNhwcKernel"),
        ("plain", "plain"),
        ("", ""),
        ("<>", "<>"),
    ],
)
def test_short_names_are_the_functions_own(full: str, short: str) -> None:
    assert short_name(full) == short


@given(st.text(alphabet="ab:<>()* ,_", max_size=40))
def test_no_name_is_lost(full: str) -> None:
    assert bool(short_name(full)) == bool(full)
