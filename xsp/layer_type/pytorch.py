"""Maps classes of PyTorch modules, and PyTorch's operators, to layer types. Data alone.

Modules are those of torch.nn, torchvision and timm. What transformers and programs define is told
by the ends of their names (name.py).
"""

from __future__ import annotations

from xsp.layer_type.kind import LayerType, table

MODULES = table(
    {
        LayerType.CONVOLUTION: """
            Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d LazyConv1d
            LazyConv2d LazyConv3d LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d
            DeformConv2d CondConv2d Conv2dSame MixedConv2d ScaledStdConv2d ScaledStdConv2dSame
            StdConv2d StdConv2dSame
        """,
        LayerType.MATMUL: """
            Linear LazyLinear Bilinear NonDynamicallyQuantizableLinear Conv1D
        """,
        LayerType.ATTENTION: """
            MultiheadAttention Attention Attention2d AttentionPool2d AttentionPoolLatent
            AttentionPoolPrr AttentionRope BatNonLocalAttn DiffAttention MultiQueryAttention2d
            MultiQueryAttentionV2 NonLocalAttn RotAttentionPool2d
        """,
        LayerType.NORMALISATION: """
            BatchNorm1d BatchNorm2d BatchNorm3d CrossMapLRN2d GroupNorm InstanceNorm1d
            InstanceNorm2d InstanceNorm3d LayerNorm LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d
            LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d LocalResponseNorm RMSNorm
            SyncBatchNorm FrozenBatchNorm2d BatchNormAct2d EvoNorm2dB0 EvoNorm2dB1 EvoNorm2dB2
            EvoNorm2dS0 EvoNorm2dS0a EvoNorm2dS1 EvoNorm2dS1a EvoNorm2dS2 EvoNorm2dS2a
            FilterResponseNormAct2d FilterResponseNormTlu2d FrozenBatchNormAct2d GroupNorm1
            GroupNorm1Act GroupNormAct InplaceAbn LayerNorm2d LayerNorm2dFp32 LayerNormAct
            LayerNormAct2d LayerNormAct2dFp32 LayerNormActFp32 LayerNormFp32 RmsNorm RmsNorm2d
            RmsNorm2dFp32 RmsNormAct RmsNormAct2d RmsNormAct2dFp32 RmsNormActFp32 RmsNormFp32
            SimpleNorm SimpleNorm2d SimpleNorm2dFp32 SimpleNormFp32 SplitBatchNorm2d
            SyncBatchNormAct
        """,
        LayerType.ACTIVATION: """
            CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid
            LogSoftmax Mish PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid Softmax Softmax2d Softmin
            Softplus Softshrink Softsign Tanh Tanhshrink Threshold GELUTanh HardMish HardSigmoid
            HardSwish QuickGELU Swish
        """,
        LayerType.POOLING: """
            AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d
            AdaptiveMaxPool2d AdaptiveMaxPool3d AvgPool1d AvgPool2d AvgPool3d FractionalMaxPool2d
            FractionalMaxPool3d LPPool1d LPPool2d LPPool3d MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d
            MaxUnpool2d MaxUnpool3d RoIAlign RoIPool PSRoIAlign PSRoIPool MultiScaleRoIAlign
            AdaptiveAvgMaxPool2d AvgPool2dSame BlurPool2d LsePlus1d LsePlus2d SelectAdaptivePool2d
            SimPool1d SimPool2d
        """,
        LayerType.EMBEDDING: "Embedding EmbeddingBag RelPosBias RelPosBiasTf",
        LayerType.RECURRENT: "GRU GRUCell LSTM LSTMCell RNN RNNBase RNNCell RNNCellBase",
        LayerType.ELEMENTWISE: """
            AlphaDropout Dropout Dropout1d Dropout2d Dropout3d FeatureAlphaDropout StochasticDepth
            DropBlock2d DropBlock3d DropPath LayerScale LayerScale2d FourierEmbed RotaryEmbedding
            RotaryEmbeddingCat RotaryEmbeddingDinoV3 RotaryEmbeddingMRope RotaryEmbeddingMixed
        """,
        LayerType.REDUCTION: "CosineSimilarity PairwiseDistance",
        LayerType.DATA_MOVEMENT: """
            ChannelShuffle CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d
            ConstantPad3d Flatten Fold PixelShuffle PixelUnshuffle ReflectionPad1d ReflectionPad2d
            ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d Unflatten Unfold
            Upsample UpsamplingBilinear2d UpsamplingNearest2d ZeroPad1d ZeroPad2d ZeroPad3d Permute
            DepthToSpace SpaceToDepth PatchDropout PatchDropoutWithIndices PatchEmbedInterpolator
        """,
        LayerType.LOSS: """
            AdaptiveLogSoftmaxWithLoss BCELoss BCEWithLogitsLoss CTCLoss CosineEmbeddingLoss
            CrossEntropyLoss GaussianNLLLoss HingeEmbeddingLoss HuberLoss KLDivLoss L1Loss
            LinearCrossEntropyLoss MSELoss MarginRankingLoss MultiLabelMarginLoss
            MultiLabelSoftMarginLoss MultiMarginLoss NLLLoss NLLLoss2d PoissonNLLLoss SmoothL1Loss
            SoftMarginLoss TripletMarginLoss TripletMarginWithDistanceLoss
        """,
        LayerType.CONTAINER: """
            Container DataParallel Module ModuleDict ModuleList ParameterDict ParameterList
            Sequential Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder
            TransformerEncoderLayer Conv2dNormActivation Conv3dNormActivation FeaturePyramidNetwork
            MLP SqueezeExcitation CecaModule CircularEfficientChannelAttn ClNormMlpClassifierHead
            ClassifierHead ConvBnAct ConvMlp ConvNormAct ConvNormActAa EcaModule EffectiveSEModule
            EffectiveSqueezeExcite EfficientChannelAttn GatedMlp GatherExcite GlobalContext
            GlobalResponseNormMlp GluMlp HybridEmbed HybridEmbedWithSize Mlp NormMlpClassifierHead
            PatchEmbed PatchEmbedWithSize RelPosMlp SEModule SelectiveKernel SeparableConv2d
            SeparableConvNormAct SplitAttn SqueezeExcite SwiGLU TestTimePoolHead
        """,
        LayerType.OTHER: "Identity",
    }
)

_ATEN = {
    LayerType.CONVOLUTION: """
        conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution
        _convolution convolution_overrideable convolution_backward mkldnn_convolution
        mkldnn_convolution_backward cudnn_convolution cudnn_convolution_relu
        cudnn_convolution_add_relu cudnn_convolution_transpose miopen_convolution
        miopen_convolution_relu miopen_convolution_transpose miopen_depthwise_convolution
        _slow_conv2d_forward _slow_conv2d_backward slow_conv3d slow_conv3d_forward
        slow_conv_transpose2d slow_conv_transpose3d thnn_conv2d _conv_depthwise2d conv_depthwise3d
        conv_tbc
    """,
    LayerType.MATMUL: """
        linear matmul mm bmm addmm addmm_ baddbmm addbmm mv addmv dot vdot inner outer ger einsum
        bilinear tensordot mkldnn_linear _addmm_activation _scaled_mm _int_mm linear_backward
        matmul_backward chain_matmul kron
    """,
    LayerType.ATTENTION: """
        scaled_dot_product_attention _scaled_dot_product_flash_attention
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention
        _scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math
        _scaled_dot_product_attention_math_for_mps _scaled_dot_product_fused_attention_overrideable
        _scaled_dot_product_flash_attention_backward
        _scaled_dot_product_flash_attention_for_cpu_backward
        _scaled_dot_product_efficient_attention_backward
        _scaled_dot_product_cudnn_attention_backward _flash_attention_forward
        _flash_attention_backward _efficient_attention_forward _efficient_attention_backward
        _native_multi_head_attention _transformer_encoder_layer_fwd
    """,
    LayerType.NORMALISATION: """
        batch_norm native_batch_norm _batch_norm_impl_index _native_batch_norm_legit
        _native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update
        cudnn_batch_norm miopen_batch_norm native_batch_norm_backward
        _batch_norm_impl_index_backward cudnn_batch_norm_backward miopen_batch_norm_backward
        batch_norm_backward layer_norm native_layer_norm native_layer_norm_backward rms_norm
        _fused_rms_norm _fused_rms_norm_backward group_norm native_group_norm
        native_group_norm_backward instance_norm local_response_norm renorm weight_norm
    """,
    LayerType.ACTIVATION: """
        relu relu_ relu6 relu6_ prelu _prelu_kernel leaky_relu leaky_relu_ elu elu_ celu celu_ selu
        selu_ gelu gelu_ silu silu_ mish mish_ glu hardtanh hardtanh_ hardswish hardswish_
        hardsigmoid hardsigmoid_ hardshrink softshrink sigmoid sigmoid_ tanh tanh_ log_sigmoid
        softplus softsign softmax _softmax log_softmax _log_softmax _safe_softmax rrelu threshold
        threshold_ threshold_backward gelu_backward silu_backward mish_backward elu_backward
        sigmoid_backward tanh_backward hardswish_backward hardsigmoid_backward hardtanh_backward
        leaky_relu_backward glu_backward _softmax_backward_data _log_softmax_backward_data
        softplus_backward
    """,
    LayerType.POOLING: """
        max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices
        mkldnn_max_pool2d mkldnn_max_pool3d max_pool2d_with_indices_backward
        max_pool3d_with_indices_backward avg_pool1d avg_pool2d avg_pool3d avg_pool2d_backward
        avg_pool3d_backward adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d
        adaptive_avg_pool3d _adaptive_avg_pool3d _adaptive_avg_pool2d_backward
        mkldnn_adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
        fractional_max_pool2d max_unpool2d
    """,
    LayerType.EMBEDDING: """
        embedding embedding_bag _embedding_bag _embedding_bag_forward_only embedding_backward
        embedding_dense_backward
    """,
    LayerType.RECURRENT: """
        lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _cudnn_rnn
        _cudnn_rnn_backward miopen_rnn mkldnn_rnn_layer mkldnn_rnn_layer_backward
        _thnn_fused_lstm_cell _thnn_fused_gru_cell quantized_lstm
    """,
    LayerType.REDUCTION: """
        sum mean var std var_mean std_mean amax amin max_dim min_dim max min argmax argmin prod norm
        linalg_vector_norm logsumexp cumsum cumprod any all median mode cosine_similarity
        pairwise_distance cdist _cdist_forward topk count_nonzero
    """,
    LayerType.ELEMENTWISE: """
        add add_ sub sub_ mul mul_ div div_ rsub neg pow pow_ sqrt rsqrt exp log log1p abs sign sin
        cos erf clamp clamp_ clamp_min clamp_max maximum minimum where eq ne gt ge lt le logical_not
        logical_and logical_or bitwise_not bitwise_and bitwise_or to _to_copy dropout dropout_
        native_dropout feature_dropout native_dropout_backward addcmul addcmul_ addcdiv addcdiv_
        lerp lerp_ masked_fill masked_fill_ reciprocal square floor ceil round remainder fmod
        floor_divide atan2 type_as
    """,
    LayerType.DATA_MOVEMENT: """
        view _unsafe_view reshape _reshape_alias t transpose permute as_strided expand expand_as
        slice select narrow squeeze unsqueeze flatten unflatten detach alias contiguous clone copy_
        cat _cat concat stack split chunk unbind gather scatter scatter_ scatter_add scatter_add_
        index index_select index_put index_put_ pad constant_pad_nd reflection_pad2d
        replication_pad2d roll flip repeat repeat_interleave tile movedim unfold fold im2col col2im
        pixel_shuffle pixel_unshuffle channel_shuffle upsample_nearest2d upsample_bilinear2d
        upsample_bicubic2d _upsample_bilinear2d_aa sort argsort tril triu masked_select
        split_with_sizes broadcast_to
    """,
    LayerType.LOSS: """
        cross_entropy_loss nll_loss nll_loss_nd nll_loss_forward nll_loss_backward
        nll_loss2d_forward nll_loss2d_backward mse_loss mse_loss_backward l1_loss smooth_l1_loss
        huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div ctc_loss
        _ctc_loss
    """,
    LayerType.OTHER: """
        empty empty_like empty_strided zeros zeros_like ones ones_like full full_like new_empty
        new_zeros new_ones new_full zero_ fill_ arange linspace rand randn randint bernoulli
        bernoulli_ normal_ uniform_ multinomial item _local_scalar_dense resize_ set_ lift_fresh
        stft fft_fft fft_rfft _fft_r2c _fft_c2c _fft_c2r
    """,
}
OPERATORS = {
    **{f"aten::{name}": kind for name, kind in table(_ATEN).items()},
    **table(
        {
            LayerType.CONVOLUTION: """
                mkldnn::_convolution_pointwise mkldnn::_convolution_pointwise_
                mkldnn::_convolution_transpose_pointwise
            """,
            LayerType.MATMUL: "mkldnn::_linear_pointwise mkl::_mkl_linear",
            LayerType.POOLING: "torchvision::roi_align torchvision::roi_pool",
        }
    ),
}
