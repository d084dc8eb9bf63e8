"""Maps classes of Keras layers to layer types, whichever back end runs the layers. Data alone."""

from __future__ import annotations

from xsp.layer_type.kind import LayerType, table

LAYERS = table(
    {
        LayerType.CONVOLUTION: """
            Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose DepthwiseConv1D
            DepthwiseConv2D SeparableConv1D SeparableConv2D LocallyConnected1D LocallyConnected2D
        """,
        LayerType.MATMUL: "Dense EinsumDense Dot",
        LayerType.ATTENTION: """
            AdditiveAttention Attention GroupQueryAttention GroupedQueryAttention MultiHeadAttention
        """,
        LayerType.NORMALISATION: """
            BatchNormalization GroupNormalization LayerNormalization Normalization RMSNormalization
            UnitNormalization
        """,
        LayerType.ACTIVATION: "Activation ELU LeakyReLU PReLU ReLU Softmax ThresholdedReLU",
        LayerType.POOLING: """
            AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveAveragePooling3D
            AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D AveragePooling1D
            AveragePooling2D AveragePooling3D GlobalAveragePooling1D GlobalAveragePooling2D
            GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D
            MaxPooling1D MaxPooling2D MaxPooling3D
        """,
        LayerType.EMBEDDING: "Embedding ReversibleEmbedding",
        LayerType.RECURRENT: """
            ConvLSTM1D ConvLSTM2D ConvLSTM3D GRU GRUCell LSTM LSTMCell RNN SimpleRNN SimpleRNNCell
            StackedRNNCells
        """,
        LayerType.ELEMENTWISE: """
            ActivityRegularization Add AlphaDropout Average Dropout GaussianDropout GaussianNoise
            Masking Maximum Minimum Multiply Rescaling SpatialDropout1D SpatialDropout2D
            SpatialDropout3D Subtract
        """,
        LayerType.DATA_MOVEMENT: """
            CenterCrop Concatenate Cropping1D Cropping2D Cropping3D Flatten Permute RepeatVector
            Reshape Resizing UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D
            ZeroPadding3D
        """,
        LayerType.PREPROCESSING: """
            AugMix AutoContrast CategoryEncoding ContrastLimitedAdaptiveHistogramEqualization CutMix
            Discretization Equalization HashedCrossing Hashing IntegerLookup MaxNumBoundingBoxes
            MelSpectrogram MixUp RandAugment RandomBrightness RandomColorDegeneration
            RandomColorJitter RandomContrast RandomCrop RandomElasticTransform RandomErasing
            RandomFlip RandomGaussianBlur RandomGrayscale RandomHue RandomInvert RandomPerspective
            RandomPosterization RandomRotation RandomSaturation RandomSharpness RandomShear
            RandomTranslation RandomZoom STFTSpectrogram Solarization StringLookup TextVectorization
        """,
        LayerType.CONTAINER: """
            Bidirectional FlaxLayer Functional JaxLayer Layer Model Pipeline Sequential
            SpectralNormalization TFSMLayer TimeDistributed TorchModuleWrapper Wrapper
        """,
        LayerType.OTHER: "Identity InputLayer InputSpec Lambda",
    }
)
