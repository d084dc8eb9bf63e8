"""Maps types of ONNX operators to layer types. Data alone.

The operators are those of the standard and of its machine-learning domain, and those that ONNX
Runtime adds.
"""

from __future__ import annotations

from xsp.layer_type.kind import LayerType, table

OPERATORS = table(
    {
        LayerType.CONVOLUTION: """
            CausalConvWithState Conv ConvInteger ConvTranspose DeformConv QLinearConv
            ConvTransposeWithDynamicPads FusedConv NhwcConv NhwcFusedConv QLinearConvTranspose
            VarlenCausalConvWithState ConvStateReplay WordConvEmbedding
        """,
        LayerType.MATMUL: """
            Einsum Gemm MatMul MatMulInteger QLinearMatMul DynamicQuantizeMatMul FusedGemm
            FusedMatMul FusedMatMulActivation GemmFastGelu GemmFloat8
            MatMulBlockQuantizedFp4Weight MatMulBlockQuantizedFp8Weight MatMulBnb4 MatMulFpQ4
            MatMulInteger16 MatMulIntegerToFloat MatMulNBits MatMulNBitsMlp MatMulNBitsQLoRA
            MatMulNBitsQkv MatMulPacked MoE MoEPacked QGemm QMoE QOrderedMatMul RouterGateUpProj
            SparseToDenseMatMul TransposeMatMul
        """,
        LayerType.ATTENTION: """
            Attention FlexAttention LinearAttention DecoderAttention DecoderMaskedMultiHeadAttention
            DecoderMaskedSelfAttention DynamicSparseAttention GatedDeltaNet
            GatedDeltaNetStateReplay GroupQueryAttention LinearAttentionGate LongformerAttention
            MultiHeadAttention PackedAttention PackedMultiHeadAttention
            PackedSparseAttentionIndexer PackedSparseAttentionIndexerMerge PagedAttention QAttention
            QOrderedAttention QOrderedLongformerAttention SparseAttention SparseAttentionIndexer
            SparsePagedAttention
        """,
        LayerType.NORMALISATION: """
            BatchNormalization GroupNormalization InstanceNormalization LRN LayerNormalization
            LpNormalization MeanVarianceNormalization RMSNormalization BranchwiseRMSNorm
            GatedRMSNorm GroupNorm QOrderedLayerNormalization RMSNormRotary
            SimplifiedLayerNormalization SkipGroupNorm SkipLayerNormalization
            SkipSimplifiedLayerNormalization
        """,
        LayerType.ACTIVATION: """
            Celu Elu Gelu HardSigmoid HardSwish Hardmax LeakyRelu LogSoftmax Mish PRelu Relu Selu
            Shrink Sigmoid Softmax Softplus Softsign SwiGLU Swish Tanh ThresholdedRelu BiasGelu
            BiasSoftmax BiasSplitGelu FastGelu QLinearLeakyRelu QLinearSigmoid QLinearSoftmax
            QOrderedGelu QuickGelu ScaledSiLU
        """,
        LayerType.POOLING: """
            AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool MaxRoiPool
            MaxUnpool RoiAlign MaxpoolWithMask NhwcMaxPool QLinearAveragePool
            QLinearGlobalAveragePool
        """,
        LayerType.EMBEDDING: """
            EmbedLayerNormalization GatedRelativePositionBias QEmbedLayerNormalization
            RelativePositionBias TorchEmbedding
        """,
        LayerType.RECURRENT: "GRU LSTM RNN AttnLSTM DynamicQuantizeLSTM Mamba2Verify",
        LayerType.REDUCTION: """
            ArgMax ArgMin CumProd CumSum ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax
            ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare CDist QLinearReduceMean
            ReduceSumInteger IsAllFinite
        """,
        LayerType.ELEMENTWISE: """
            Abs Acos Acosh Add And Asin Asinh Atan Atanh BitCast BitShift BitwiseAnd BitwiseNot
            BitwiseOr BitwiseXor Cast CastLike Ceil Clip Cos Cosh DequantizeLinear Div Dropout
            DynamicQuantizeLinear Equal Erf Exp Floor Greater GreaterOrEqual IsInf IsNaN Less
            LessOrEqual Log Max Mean Min Mod Mul Neg Not Or Pow QuantizeLinear Reciprocal
            RotaryEmbedding Round Sign Sin Sinh Sqrt Sub Sum Tan Where Xor BiasAdd BiasDropout
            BitmaskBiasDropout BitmaskDropout ComplexMul ComplexMulConj DequantizeBFP
            DequantizeWithOrder EngramGate GatedAdd GemmaRotaryEmbedding HyperConnectionLowRankMix
            HyperConnectionPostMix HyperConnectionPreMix MRotaryEmbedding MulInteger QLinearAdd
            QLinearMul QLinearWhere QuantizeBFP QuantizeWithOrder
        """,
        LayerType.DATA_MOVEMENT: """
            CenterCropPad Col2Im Compress Concat ConcatFromSequence DepthToSpace Expand Flatten
            Gather GatherElements GatherND GridSample OneHot Pad Reshape Resize ReverseSequence
            Scatter ScatterElements ScatterND Slice SpaceToDepth Split SplitToSequence Squeeze
            TensorScatter Tile TopK Transpose Trilu Unique Unsqueeze Upsample ArrayFeatureExtractor
            CropAndResize ExpandDims GatherBlockQuantized GatherPacked MemcpyFromHost MemcpyToHost
            QLinearConcat RemovePadding ReorderInput ReorderOutput RestorePadding UnfoldTensor
        """,
        LayerType.PREPROCESSING: """
            ImageDecoder RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer
            Binarizer CastMap CategoryMapper DictVectorizer FeatureVectorizer Imputer LabelEncoder
            MelWeightMatrix Normalizer OneHotEncoder Scaler ZipMap MurmurHash3 NGramHashMapping
            Tokenizer VarlenNGramHashMapping
        """,
        LayerType.LOSS: "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
        LayerType.OTHER: """
            Adagrad Adam AffineGrid Bernoulli BlackmanWindow Constant ConstantOfShape DFT Det
            EyeLike Gradient HammingWindow HannWindow Identity If LinearClassifier LinearRegressor
            Loop Momentum Multinomial NonMaxSuppression NonZero Optional OptionalGetElement
            OptionalHasElement RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range
            STFT SVMClassifier SVMRegressor Scan SequenceAt SequenceConstruct SequenceEmpty
            SequenceErase SequenceInsert SequenceLength SequenceMap Shape Size TreeEnsemble
            TreeEnsembleClassifier TreeEnsembleRegressor BeamSearch BifurcationDetector
            DynamicTimeWarping EPContext GreedySearch Inverse Irfft MoEGroupRouter NGramRepeatBlock
            Rfft SampleOp Sampling Snpe SpeculativePrefixCommit WhisperBeamSearch
        """,
    }
)
