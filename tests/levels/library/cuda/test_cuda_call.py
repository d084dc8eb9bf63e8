from __future__ import annotations

from xsp_levels.library.cuda.call import CudaCall, calls
from xsp_levels.library.cuda.log import CUBLAS, CUDNN, LT_FUNCTION, LT_MESSAGE, Message
from xsp_levels.library.cuda.provider import call_rows, flops, formats, problem

# As cuBLAS 13.4.1 and cuDNN 9.26 said it, called without a GPU.
GEMM = """\
I! cuBLAS (v13.4.1) function cublasStatus_t cublasGemmEx(cublasHandle_t, int, cublasGemmAlgo_t) called:
i!  handle: type=cublasHandle_t; val=POINTER (IN HEX:0x(nil))
i!  transa: type=cublasOperation_t; val=CUBLAS_OP_N(0)
i!  transb: type=cublasOperation_t; val=CUBLAS_OP_T(1)
i!  m: type=int; val=10
i!  n: type=int; val=20
i!  k: type=int; val=30
i!  A: type=void; val=POINTER (IN HEX:0x0x100)
i!  Atype: type=cudaDataType_t; val=CUDA_R_16F(2)
i!  lda: type=int; val=10
i!  computeType: type=cublasComputeType_t; val=CUBLAS_COMPUTE_32F(68)
i!  algo: type=SOME TYPE; val=CUBLAS_GEMM_DEFAULT_TENSOR_OP(99)
i! Time: 2026-11-21T02:04:36 elapsed from start 0.0 minutes or 0.0 seconds
i!Process=1; Thread=14; GPU=0; Handle=POINTER (IN HEX:0x0x1); StreamId=POINTER (IN HEX:0x0x70); MathMode
"""  # noqa: E501
CONVOLUTION = (
    "CuDNN (v92600 51) function cudnnConvolutionForward() called:\0"
    "    handle: type=cudnnHandle_t; val=NULL_PTR;\0"
    "    xDesc: type=cudnnTensorDescriptor_t:\0"
    "        dataType: type=cudnnDataType_t; val=CUDNN_DATA_FLOAT (0);\0"
    "        dimA: type=int; val=[1,3,32,32];\0"
    "    xData: location=dev; addr=NULL_PTR;\0"
    "    algo: type=cudnnConvolutionFwdAlgo_t; val=CUDNN_CONVOLUTION_FWD_ALGO_GEMM (2);\0"
    "Time: 2026-11-21T02:04:36.349382 (0d+0h+0m+0s since start)\0"
    "Process=1; Thread=1; GPU=NULL; Handle=NULL; StreamId=NULL."
)
STATUS = (
    "CuDNN (v92600 51) function {} called:\0"
    "    status: type=cudnnStatus_t; val=CUDNN_STATUS_SUCCESS (0);\0"
)
HALVES = (
    "A=0X7F8EB6002300 Adesc=[type=R_16F rows=32 cols=16 ld=32] "
    "B=0X7F8EB6001B00 Bdesc=[type=R_16F rows=16 cols=64 ld=16] "
    "C=0X7F8EB6003200 Cdesc=[type=R_16F rows=32 cols=64 ld=32] "
    "D=0X7F8EB6003200 Ddesc=[type=R_16F rows=32 cols=64 ld=32] "
    "computeDesc=[computeType=COMPUTE_32F scaleType=R_32F] "
    "algo=[algoId=21 tile=MATMUL_TILE_32x32 stages=MATMUL_STAGES_64x1] "
    "workSpace=0X0 workSpaceSizeInBytes=0 beta=? outOfPlace=0 stream=0X7EB04D0"
)
EIGHT_BITS = (
    "A=0X736CB315E800 Adesc=[type=R_8F_E4M3 rows=64 cols=1088 ld=64] "
    "B=0X736C9B644000 Bdesc=[type=R_8F_E4M3 rows=128 cols=1088 ld=128] "
    "C=0X0 Cdesc=[type=R_16BF rows=64 cols=128 ld=64] "
    "D=0X736CB30A4400 Ddesc=[type=R_16BF rows=64 cols=128 ld=64] "
    "computeDesc=[computeType=COMPUTE_32F scaleType=R_32F transb=OP_T "
    "aScalePointer=0x736cb30b4c00 bScalePointer=0x736cb30ba200 "
    "aScaleMode=VEC32_UE8M0 bScaleMode=VEC32_UE8M0] "
    "algo=[algoId=66 tile=MATMUL_TILE_128x128 stages=MATMUL_STAGES_128xAUTO customOption=3 "
    "clusterShape=CLUSTER_SHAPE_1x1x1] "
    "workSpace=0X0 workSpaceSizeInBytes=0 beta=0 outOfPlace=1 stream=0X0"
)


def cublas(text: str, at: int = 0, thread: int = 1) -> list[Message]:
    return [
        Message(CUBLAS, at + number, thread, 0, line + "\n")
        for number, line in enumerate(text.splitlines())
    ]


def cudnn(text: str, at: int, thread: int = 1) -> Message:
    return Message(CUDNN, at, thread, 0x70, text)


def test_a_call_of_cublas_is_put_together_of_its_lines() -> None:
    (call,) = calls(cublas(GEMM, at=100))
    assert (call.library, call.function) == ("cuBLAS 13.4.1", "cublasGemmEx")
    assert (call.start_ns, call.end_ns, call.thread, call.stream) == (100, None, 1, 0x70)
    assert call.values["m"] == "10"
    assert call.values["algo"] == "CUBLAS_GEMM_DEFAULT_TENSOR_OP"
    assert "A" not in call.values  # an address


def test_lines_of_two_threads_are_not_mixed() -> None:
    other = cublas(GEMM.replace("val=10", "val=77"), thread=2)
    mixed = [message for pair in zip(cublas(GEMM), other, strict=True) for message in pair]
    assert [(call.thread, call.values["m"]) for call in calls(mixed)] == [(1, "10"), (2, "77")]


def test_cudnn_says_what_it_computes() -> None:
    (call,) = calls([cudnn(CONVOLUTION, 50)])
    assert (call.library, call.function) == ("cuDNN 9.26.0", "cudnnConvolutionForward")
    assert call.stream == 0x70
    assert call.values["algo"] == "CUDNN_CONVOLUTION_FWD_ALGO_GEMM"
    assert problem(call) == "xDesc[1,3,32,32]"
    assert formats(call) == "xDesc.dataType:CUDNN_DATA_FLOAT"


def test_a_call_ends_after_those_that_cudnn_makes_in_it() -> None:
    """As cuDNN 9.19 spoke of a convolution on an H200: the inner call tells of no end."""
    begins = "CuDNN (v91900 56) function {}() called:\0    n: type=int; val=1;\0"
    said = [
        cudnn(begins.format("cudnnBatchNormalizationForwardInference"), 10),
        cudnn(begins.format("cudnnBackendExecute"), 20),
        cudnn(begins.format("cudnnBackendExecuteInternal"), 30),
        cudnn(STATUS.format("cudnnBackendExecute()"), 40),
        cudnn(begins.format("cudnnBackendExecute"), 50),
        cudnn(STATUS.format("cudnnBackendExecute()"), 60),
        cudnn(STATUS.format("cudnnBackendExecute()"), 70),
    ]
    assert [(call.function, call.start_ns, call.end_ns) for call in calls(said)] == [
        ("cudnnBatchNormalizationForwardInference", 10, None),
        ("cudnnBackendExecute", 20, 40),
        ("cudnnBackendExecute", 50, 60),
    ]


def lt(function: str, text: str, at: int = 5, thread: int = 1) -> list[Message]:
    return [
        Message(LT_FUNCTION, at, thread, 0, function),
        Message(LT_MESSAGE, at + 1, thread, 0, text),
    ]


def test_products_of_cublaslt_have_sizes_types_and_operations() -> None:
    rows = call_rows(
        calls([*lt("cublasLtMatmul", HALVES), *lt("cublasLtMatmul", EIGHT_BITS, at=9)]), {}
    )
    assert rows["attr.problem"].to_list() == ["m32 n64 k16 NN", "m64 n128 k1088 NT"]
    assert rows["attr.flops"].to_list() == [2 * 32 * 64 * 16, 2 * 64 * 128 * 1088]
    assert rows["attr.formats"].to_list() == [
        "A:R_16F B:R_16F C:R_16F D:R_16F computeType:COMPUTE_32F",
        "A:R_8F_E4M3 B:R_8F_E4M3 C:R_16BF D:R_16BF computeType:COMPUTE_32F",
    ]


def test_operations_are_counted_for_real_products_only() -> None:
    def gemm(function: str, **values: str) -> CudaCall:
        return CudaCall(
            "cuBLAS 13", function, 0, 1, values={"m": "2", "n": "3", "k": "4", **values}
        )

    assert flops(gemm("cublasSgemm_v2")) == 48
    assert flops(gemm("cublasGemmStridedBatchedEx", batchCount="5")) == 240
    assert flops(gemm("cublasCgemm_v2")) is None
    assert flops(gemm("cublasGemmEx", Atype="CUDA_R_16F")) == 48
    assert flops(gemm("cublasGemmEx", Atype="CUDA_C_32F")) is None
    assert flops(gemm("cublasSgemv_v2")) is None
    assert flops(gemm("cublasSgemm_v2", m="?")) is None


def test_messages_that_make_no_sense_are_passed_over() -> None:
    odd = [cudnn("?", 1), *cublas("i!  m: type=int; val=1\nI! cuBLAS"), Message(9, 0, 1, 0, "x")]
    assert calls(odd) == []
