"""Maps classes of Flax and Equinox, primitives, and operators of HLO to layer types. Data alone."""

from __future__ import annotations

from xsp.layer_type.kind import LayerType, table

MODULES = table(
    {
        LayerType.CONVOLUTION: """
            Conv Conv1d Conv2d Conv3d ConvLocal ConvTranspose ConvTranspose1d ConvTranspose2d
            ConvTranspose3d
        """,
        LayerType.MATMUL: """
            Dense DenseGeneral Einsum Fp8DirectDotGeneralOp Fp8DotGeneral Fp8DotGeneralOp Fp8Einsum
            Linear LinearGeneral LoRA LoRALinear NANOOFp8DotGeneralOp
        """,
        LayerType.ATTENTION: """
            MultiHeadAttention MultiHeadDotProductAttention MultiheadAttention SelfAttention
        """,
        LayerType.NORMALISATION: "BatchNorm GroupNorm InstanceNorm LayerNorm RMSNorm",
        LayerType.ACTIVATION: "PReLU",
        LayerType.POOLING: """
            AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d
            AdaptiveMaxPool2d AdaptiveMaxPool3d AdaptivePool AvgPool1d AvgPool2d AvgPool3d MaxPool1d
            MaxPool2d MaxPool3d Pool
        """,
        LayerType.EMBEDDING: "Embed Embedding",
        LayerType.RECURRENT: """
            ConvLSTMCell GRUCell LSTMCell MGUCell OptimizedLSTMCell RNN RNNCellBase SimpleCell
        """,
        LayerType.ELEMENTWISE: "Dropout RotaryPositionalEmbedding",
        LayerType.CONTAINER: """
            Bidirectional Dict List MLP Module Sequential Shared SpectralNorm StatefulLayer
            WeightNorm
        """,
        LayerType.OTHER: "Identity Lambda StateIndex",
    }
)

OPERATORS = table(
    {
        LayerType.CONVOLUTION: "convolution conv_general_dilated __onednn$convolution",
        LayerType.MATMUL: "dot dot_general ragged-dot ragged_dot_general __onednn$matmul",
        LayerType.ATTENTION: "dot_product_attention __cudnn$fmhaSoftmax",
        LayerType.NORMALISATION: """
            batch-norm-grad batch-norm-inference batch-norm-training __onednn$layernorm
        """,
        LayerType.ACTIVATION: "erf logistic relu softmax tanh __onednn$softmax",
        LayerType.POOLING: """
            reduce-window select-and-scatter reduce_window reduce_window_max reduce_window_sum
            select_and_scatter_add
        """,
        LayerType.REDUCTION: """
            argmax argmin cumsum reduce reduce_max reduce_min reduce_prod reduce_sum reduce_and
            reduce_or top_k topk
        """,
        LayerType.ELEMENTWISE: """
            abs add and atan2 bitcast-convert cbrt ceil clamp compare complex convert
            convert_element_type cosine count-leading-zeros divide exponential
            exponential-minus-one floor imag integer_pow is-finite log log-plus-one map maximum
            minimum multiply negate not or popcnt power real reduce-precision remainder
            round-nearest-afz round-nearest-even rsqrt select select_n shift-left
            shift-right-arithmetic shift-right-logical sign sine sqrt square stochastic-convert
            subtract tan xor
        """,
        LayerType.DATA_MOVEMENT: """
            bitcast broadcast broadcast_in_dim concatenate copy copy-done copy-start dynamic-slice
            dynamic-update-slice dynamic_slice dynamic_update_slice gather pad reshape reverse
            scatter scatter_add slice sort squeeze transpose
        """,
        LayerType.OTHER: """
            add-dependency after-all all-gather all-reduce all-to-all async-done async-start
            async-update cholesky collective-broadcast collective-permute conditional constant
            domain fft get-dimension-size get-tuple-element infeed iota opt-barrier
            optimization-barrier outfeed parameter partition-id recv recv-done reduce-scatter
            replica-id rng rng-bit-generator rng-get-and-update-state send send-done
            set-dimension-size triangular-solve tuple while
        """,
    }
)
