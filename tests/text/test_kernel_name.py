from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.text import short_name


@pytest.mark.parametrize(
    ("full", "short"),
    [
        ("void cutlass::Kernel2<cutlass_80_s1688gemm>(Params)", "cutlass_80_s1688gemm"),
        ("void cutlass_5x_cudnn::Kernel<cutlass_fprop>(cutlass_fprop::Params)", "cutlass_fprop"),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdIDF16bEEEEvT_", "kentry"),
        ("_ZN", "_ZN"),
        ("void (anonymous namespace)::softmax<float>(float*)", "softmax"),
        ("cudnn::ops::nchwToNhwcKernel<float, float, float, false>(int)", "nchwToNhwcKernel"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl"
            "(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#1}::operator()() const::"
            "{lambda(float)#1}, std::array<char*, 2ul> >(int, std::array<char*, 2ul>)",
            "vectorized_elementwise_kernel",
        ),
        (
            "void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::"
            "arange_cuda_out(c10::Scalar const&)::{lambda()#1}::operator()() const::"
            "{lambda(long)#1}>(int)",
            "elementwise_kernel_with_index",
        ),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::"
            "sum_functor<float, float, float>::operator()(at::TensorIterator&)::"
            "{lambda(float, float)#1}, unsigned int, float, 4> >(at::native::ReduceOp<float>)",
            "reduce_kernel",
        ),
        ("void foo::operator()<int>(float)", "void foo::operator"),
        ("triton_per_fused__softmax_add_relu_1", "triton_per_fused__softmax_add_relu_1"),
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
