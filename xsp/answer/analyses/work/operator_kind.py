"""Kinds of operator: which compute, which only move, and which do neither, by name. Data alone."""

from __future__ import annotations

# Bytes of an element, by PyTorch's names of element types; what else is given is no tensor.
ELEMENT_BYTES = {
    "complex128": 16,
    **dict.fromkeys(("float64", "int64", "complex64", "uint64"), 8),
    **dict.fromkeys(("float32", "int32", "complex32", "uint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
}


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


# Operators that look at tensors otherwise, or make room, and neither compute nor move anything.
# Some of them call an operator that does where that is needed (`contiguous`, `dropout`).
IDLE = _aten(
    """
    view _unsafe_view reshape _reshape_alias t transpose permute as_strided expand expand_as
    view_as slice select narrow squeeze unsqueeze flatten unflatten detach detach_ alias empty
    empty_like empty_strided new_empty new_empty_strided resize_ resize_as_ resolve_conj
    resolve_neg split chunk unbind split_with_sizes tensor_split unsafe_split unsafe_chunk
    unsafe_split_with_sizes lift_fresh movedim swapaxes swapdims numpy_T mT mH adjoint view_as_real
    view_as_complex diagonal unfold set_ contiguous to dropout dropout_ feature_dropout type_as
    result_type broadcast_to broadcast_tensors real imag conj as_strided_ squeeze_ unsqueeze_ t_
    transpose_ is_floating_point size cudnn_is_acceptable
    """
) | {"detach", "detach_"}

# One operation for each element of the result, as the counters of devices have it.
ARITHMETIC = _aten("add sub mul div rsub neg")

# No operation: what is compared or moved is no arithmetic, and counted by no counter.
MOVING = _aten(
    """
    relu clamp clamp_min clamp_max hardtanh threshold threshold_backward max_pool2d_with_indices
    max_pool3d_with_indices maximum minimum copy fill zero cat _cat stack where masked_fill eq ne gt
    ge lt le logical_not logical_and logical_or bitwise_not embedding index_select gather index
    arange fill_diagonal constant_pad_nd roll flip repeat repeat_interleave one_hot argmax tril triu
    _local_scalar_dense
    """
)

# Of a large table only the rows asked for are read.
GATHERING = _aten("embedding index_select gather index")

# What comes out has the shape of the first tensor put in.
SHAPED_AS_FIRST = _aten(
    """
    relu clamp clamp_min clamp_max hardtanh threshold threshold_backward gelu silu sigmoid tanh exp
    log sqrt rsqrt hardswish hardsigmoid leaky_relu elu erf sin cos gelu_backward silu_backward
    sigmoid_backward tanh_backward native_layer_norm native_group_norm native_batch_norm
    cudnn_batch_norm miopen_batch_norm _softmax _log_softmax _softmax_backward_data
    """
)

# What comes out has the shape of all tensors put in, broadcast.
BROADCASTING = ARITHMETIC | _aten("maximum minimum pow masked_fill where")

# Of how many arguments something is read: one more may be where the result goes.
OPERANDS = {
    **dict.fromkeys(_aten("add sub mul div rsub maximum minimum pow"), 2),
    **dict.fromkeys(
        _aten(
            """
            neg relu clamp clamp_min clamp_max hardtanh threshold gelu silu sigmoid tanh exp log
            sqrt rsqrt hardswish hardsigmoid leaky_relu elu erf sin cos
            """
        ),
        1,
    ),
}

# Packages whose operators read all of what they are given; of a cache others read a few rows.
PACKAGES = frozenset({"aten", "mkldnn", "quantized", "torchvision"})

# Written, whatever was there.
UNREAD = _aten("fill_ zero_")
