"""Maps types of TensorFlow operators to layer types. Data alone.

Operators that are only prefixed (`_Mkl`, `_MklNative`, `Quantized`) are found without (name.py).
"""

from __future__ import annotations

from xsp.layer_type.kind import LayerType, table

OPERATORS = table(
    {
        LayerType.CONVOLUTION: """
            Conv Conv2D Conv2DBackpropFilter Conv2DBackpropFilterV2 Conv2DBackpropInput
            Conv2DBackpropInputV2 Conv3D Conv3DBackpropFilter Conv3DBackpropFilterV2
            Conv3DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNative
            DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput Dilation2D
            FusedPadConv2D FusedResizeAndPadConv2D _FusedConv2D _FusedConv3D
            _FusedDepthwiseConv2dNative _FusedPadConv2D FusedConv2D FusedConv3D
            FusedDepthwiseConv2D FusedDepthwiseConv2dNative PadWithConv2D PadWithFusedConv2D
            Conv2DWithBias Conv2DWithBiasAndRelu
        """,
        LayerType.MATMUL: """
            BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum MatMul SparseMatMul
            SparseTensorDenseMatMul _FusedMatMul _FusedBatchMatMul _FusedBatchMatMulV2 FusedMatMul
            FusedBatchMatMul FusedBatchMatMulV2 MatMulWithBias
        """,
        LayerType.ATTENTION: "FusedScaledDotProductAttention",
        LayerType.NORMALISATION: """
            FusedBatchNorm FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3
            FusedBatchNormV2 FusedBatchNormV3 L2Normalize LRN LRNGrad LayerNorm _FusedBatchNormEx
            _FusedBatchNormGradEx FusedBatchNormEx FusedInstanceNorm
        """,
        LayerType.ACTIVATION: """
            Elu EluGrad LeakyRelu LeakyReluGrad LogSoftmax Mish Relu Relu6 Relu6Grad ReluGrad Selu
            SeluGrad Sigmoid SigmoidGrad Softmax Softplus SoftplusGrad Softsign SoftsignGrad Swish
            Tanh TanhGrad Gelu GeluGrad Erfc
        """,
        LayerType.POOLING: """
            AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad FractionalAvgPool FractionalMaxPool MaxPool
            MaxPool3D MaxPool3DGrad MaxPoolGrad MaxPoolGradV2 MaxPoolGradWithArgmax MaxPoolV2
            MaxPoolWithArgmax
        """,
        LayerType.EMBEDDING: """
            EmbeddingLookup ResourceGather SparseSegmentMean SparseSegmentSqrtN SparseSegmentSum
        """,
        LayerType.RECURRENT: """
            BlockLSTM BlockLSTMGrad BlockLSTMGradV2 BlockLSTMV2 CudnnRNN CudnnRNNBackprop
            CudnnRNNBackpropV3 CudnnRNNV2 CudnnRNNV3 GRUBlockCell GRUBlockCellGrad LSTMBlockCell
            LSTMBlockCellGrad AUGRU
        """,
        LayerType.REDUCTION: """
            All Any ArgMax ArgMin BiasAddGrad Cumprod Cumsum EuclideanNorm L2Loss Max Mean Min Prod
            SegmentSum Sum UnsortedSegmentSum
        """,
        LayerType.ELEMENTWISE: """
            Abs Acos Add AddN AddV2 Asin Atan Atan2 BiasAdd BiasAddV1 Bitcast Cast Ceil ClipByValue
            Cos Cosh Div DivNoNan Equal Erf Exp Expm1 Floor FloorDiv FloorMod Greater GreaterEqual
            Inv IsFinite IsInf IsNan Less LessEqual Log Log1p LogicalAnd LogicalNot LogicalOr
            Maximum Minimum Mod Mul MulNoNan Neg NotEqual Pow QuantizeV2 Dequantize RealDiv
            Reciprocal Round Rsqrt RsqrtGrad Select SelectV2 Sign Sin Sinh Sqrt SqrtGrad Square
            SquaredDifference Sub Tan TruncateDiv Xlogy
        """,
        LayerType.DATA_MOVEMENT: """
            BatchToSpaceND BroadcastTo Concat ConcatV2 CropAndResize DepthToSpace DynamicPartition
            DynamicStitch ExpandDims Gather GatherNd GatherV2 ImageProjectiveTransformV3
            InvertPermutation MatrixBandPart MirrorPad OneHot Pack Pad PadV2 ParallelConcat Reshape
            ResizeArea ResizeBicubic ResizeBilinear ResizeBilinearGrad ResizeNearestNeighbor
            ResizeNearestNeighborGrad ReverseSequence ReverseV2 Roll ScatterNd Slice SpaceToBatchND
            SpaceToDepth Split SplitV Squeeze StridedSlice StridedSliceGrad TensorScatterUpdate
            Tile TopK TopKV2 Transpose Unpack Unique Where ToTf LayoutOptimizerTranspose
        """,
        LayerType.LOSS: """
            CTCLoss CTCLossV2 SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits
        """,
        LayerType.OTHER: """
            AssignAddVariableOp AssignSubVariableOp AssignVariableOp BroadcastGradientArgs Const
            ControlTrigger Empty EmptyTensorList Enter Exit FFT FFT2D Fill Identity IdentityN If
            IteratorGetNext LoopCond Merge Multinomial NextIteration NoOp OnesLike PartitionedCall
            Placeholder PreventGradient RFFT RandomStandardNormal RandomUniform Range Rank
            ReadVariableOp ResourceApplyAdaMax ResourceApplyAdagradV2 ResourceApplyAdam
            ResourceApplyFtrl ResourceApplyGradientDescent ResourceApplyKerasMomentum
            ResourceApplyMomentum ResourceApplyRMSProp Shape ShapeN Size StatefulPartitionedCall
            StatelessIf StatelessRandomUniformV2 StatelessWhile StopGradient Switch
            TensorListFromTensor TensorListGetItem TensorListReserve TensorListSetItem
            TensorListStack VarHandleOp VarIsInitializedOp VariableV2 While XlaLaunch ZerosLike _Arg
            _HostCast _Recv _Retval _Send _XlaCompile _XlaRun
        """,
    }
)
