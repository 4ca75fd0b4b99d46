"""Which family an operator belongs to. Families are the axis along which the regressors count."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class OperatorFamily(StrEnum):
    """Kinds of work on a device."""

    CONVOLUTION = "convolution"
    DEPTHWISE_CONVOLUTION = "depthwise_convolution"
    MATRIX_MULTIPLY = "matrix_multiply"
    RECURRENT = "recurrent"
    ATTENTION = "attention"
    NORMALIZATION = "normalization"
    ACTIVATION = "activation"
    POOLING = "pooling"
    EMBEDDING = "embedding"
    ELEMENTWISE = "elementwise"
    MOVEMENT = "movement"
    OTHER = "other"


_OPERATORS = {
    OperatorFamily.CONVOLUTION: "Conv ConvTranspose ConvInteger QLinearConv DeformConv FusedConv",
    OperatorFamily.MATRIX_MULTIPLY: "MatMul Gemm Einsum MatMulInteger QLinearMatMul FusedMatMul",
    OperatorFamily.RECURRENT: "LSTM GRU RNN",
    OperatorFamily.ATTENTION: "Attention",
    OperatorFamily.NORMALIZATION: (
        "BatchNormalization LayerNormalization InstanceNormalization GroupNormalization RMSNormalization LRN "
        "LpNormalization MeanVarianceNormalization SimplifiedLayerNormalization"
    ),
    OperatorFamily.ACTIVATION: (
        "Relu LeakyRelu PRelu Elu Selu Celu Gelu FastGelu Sigmoid HardSigmoid HardSwish Swish Tanh Softplus Softsign "
        "Mish ThresholdedRelu Shrink Clip Softmax LogSoftmax Hardmax Erf Dropout"
    ),
    OperatorFamily.POOLING: (
        "MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool GlobalLpPool MaxRoiPool RoiAlign"
    ),
    OperatorFamily.ELEMENTWISE: (
        "Add Sub Mul Div Pow Sqrt Exp Log Neg Abs Reciprocal Sum Mean Max Min Mod Where Equal Greater GreaterOrEqual "
        "Less LessOrEqual And Or Not Xor Sign Floor Ceil Round Sin Cos Tan Asin Acos Atan Sinh Cosh IsNaN IsInf "
        "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum "
        "ReduceLogSumExp ArgMax ArgMin CumSum TopK BitShift BitwiseAnd BitwiseOr BitwiseXor BitwiseNot "
        "QuantizeLinear DequantizeLinear DynamicQuantizeLinear SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss"
    ),
    OperatorFamily.MOVEMENT: (
        "Transpose Concat Split Slice Gather GatherElements GatherND Scatter ScatterElements ScatterND Pad Expand "
        "Tile Cast CastLike Resize Upsample DepthToSpace SpaceToDepth Trilu ReverseSequence ConstantOfShape Range "
        "EyeLike RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli OneHot Compress Unique "
        "NonZero Col2Im AffineGrid GridSample TensorScatter RotaryEmbedding"
    ),
}

FAMILY_OF: Final = {name: family for family, names in _OPERATORS.items() for name in names.split()}
"""Operator name to family; embeddings and depthwise convolutions are distinguished by their inputs."""

MULTIPLYING_FAMILIES: Final = frozenset(
    {
        OperatorFamily.CONVOLUTION,
        OperatorFamily.DEPTHWISE_CONVOLUTION,
        OperatorFamily.MATRIX_MULTIPLY,
        OperatorFamily.RECURRENT,
        OperatorFamily.ATTENTION,
    }
)
"""Families whose cost is multiply-accumulates: without a shape, a graph is not understood."""
