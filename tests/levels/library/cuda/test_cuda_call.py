from __future__ import annotations

import pytest

from xsp_levels.library.cuda.call import CudaCall, calls
from xsp_levels.library.cuda.log import CUBLAS, CUDNN, LT_FUNCTION, LT_MESSAGE, Message
from xsp_levels.library.cuda.row import call_rows, flops, formats, problem

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
# As cuBLASLt said it, on a GB10 (of cuBLAS 13.2.1), an A100, and a Blackwell.
TYPED = (
    "A=0X32F600000 Adesc=[type=R_16BF rows=2048 cols=1024 ld=2048] "
    "B=0X32EE00000 Bdesc=[type=R_16BF rows=1024 cols=32 ld=1024] "
    "C=0X32EE10000 Cdesc=[type=R_16BF rows=2048 cols=32 ld=2048] "
    "D=0X32EE10000 Ddesc=[type=R_16BF rows=2048 cols=32 ld=2048] "
    "computeDesc=[computeType=COMPUTE_32F scaleType=R_32F smCountTarget=48] "
    "algo=[algoId=67 tile=MATMUL_TILE_64x32 stages=MATMUL_STAGES_64xAUTO customOption=29] "
    "workSpace=0X0 workSpaceSizeInBytes=0 beta=0 outOfPlace=0 stream=0X0"
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


def test_calls_that_compute_nothing_are_left_out() -> None:
    quiet = [
        cublas("I! cuBLAS (v13.4.1) function cublasStatus_t cublasSetStream_v2(void*) called:"),
        cublas("I! cuBLAS (v13.4.1) function cublasStatus_t cublasCreate_v2(void**) called:"),
        [cudnn("CuDNN (v92600 51) function cudnnSetTensor4dDescriptor() called:\0", 1)],
        [cudnn("CuDNN (v92600 51) function cudnnBackendFinalize() called:\0", 1)],
        [cudnn("CuDNN (v92600 51) function cudnnRNNSetClip_v8() called:\0", 1)],
        [cudnn("CuDNN (v92600 51) function cudnnRNNGetClip_v9() called:\0", 1)],
        [cudnn("CuDNN (v92600 51) function cudnnDeriveBNTensorDescriptor() called:\0", 1)],
        [cudnn("CuDNN (v92600 51) function cudnnCreateTensorDescriptor() called:\0", 1)],
        [cudnn("CuDNN (v92600 51) function cudnnGetConvolutionForwardAlgorithm_v7() called:\0", 1)],
        [Message(LT_FUNCTION, 0, 1, 0, "cublasLtCreate"), Message(LT_MESSAGE, 1, 1, 0, "")],
    ]  # fmt: skip
    assert calls([message for each in quiet for message in each]) == []


@pytest.mark.parametrize(
    "function",
    [
        "cudnnAddTensor",
        "cudnnTransformTensorEx",
        "cudnnSetTensor",
        "cudnnRNNForward",
        "cudnnRNNBackwardWeights_v8",
        "cudnnReorderFilterAndBias",
        "cudnnBackendExecute",
        "cudnnBackendPopulateCudaGraph",
    ],
)
def test_calls_that_compute_are_kept(function: str) -> None:
    said = [cudnn(f"CuDNN (v92600 51) function {function}() called:\0", 1)]
    assert [call.function for call in calls(said)] == [function]


def test_cudnn_says_what_it_computes() -> None:
    (call,) = calls([cudnn(CONVOLUTION, 50)])
    assert (call.library, call.function) == ("cuDNN 9.26.0", "cudnnConvolutionForward")
    assert call.stream == 0x70
    assert call.values["algo"] == "CUDNN_CONVOLUTION_FWD_ALGO_GEMM"
    assert problem(call) == "xDesc[1,3,32,32]"
    assert formats(call) == "xDesc.dataType:CUDNN_DATA_FLOAT"


def test_a_status_of_the_same_function_ends_the_call() -> None:
    ended = [cudnn(CONVOLUTION, 50), cudnn(STATUS.format("cudnnConvolutionForward()"), 90)]
    assert [(call.start_ns, call.end_ns) for call in calls(ended)] == [(50, 90)]
    failed = (
        "CuDNN (v92600 51) function cudnnConvolutionForward() called:\0    Info: Traceback contains"
    )
    assert [call.end_ns for call in calls([cudnn(CONVOLUTION, 50), cudnn(failed, 70)])] == [70]
    other = [cudnn(CONVOLUTION, 50), cudnn(STATUS.format("cudnnSetStream()"), 90)]
    assert [call.end_ns for call in calls(other)] == [None]


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


def test_cublaslt_says_layouts_and_algorithm() -> None:
    (call,) = calls(lt("cublasLtMatmul", HALVES))
    assert call.function == "cublasLtMatmul"
    assert call.stream == 0x7EB04D0
    assert call.values["Adesc"] == "[type=R_16F rows=32 cols=16 ld=32]"
    assert "A" not in call.values  # an address
    (row,) = call_rows([call], {}).rows(named=True)
    assert row["attr.algorithm"] == ("[algoId=21 tile=MATMUL_TILE_32x32 stages=MATMUL_STAGES_64x1]")


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


def test_a_product_of_cublaslt_may_be_turned_of_a_batch_or_complex() -> None:
    turned = EIGHT_BITS.replace("rows=64 cols=1088 ld=64", "rows=1088 cols=64 ld=1088")
    turned = turned.replace("scaleType=R_32F transb=OP_T", "scaleType=R_32F transa=OP_T")
    batch = HALVES.replace("ld=32]", "ld=32 batchCount=7 batchStride=2048]")
    unreal = HALVES.replace("R_16F", "C_32F")
    said = [lt("cublasLtMatmul", text) for text in (turned, batch, unreal)]
    made = calls([message for each in said for message in each])
    assert [problem(call) for call in made] == [
        "m64 n128 k1088 TN",
        "m32 n64 k16 batchCount7 NN",
        "m32 n64 k16 NN",
    ]
    assert [flops(call) for call in made] == [2 * 64 * 128 * 1088, 7 * 2 * 32 * 64 * 16, None]


def test_a_transform_of_cublaslt_is_no_product() -> None:
    (call,) = calls(lt("cublasLtMatrixTransform", HALVES))
    assert (problem(call), flops(call)) == (None, None)


RAN = "[algoId=67 tile=MATMUL_TILE_64x32 stages=MATMUL_STAGES_64xAUTO customOption=29]"


@pytest.mark.parametrize(
    "function", ["cublasLtTSTMatmul", "cublasLtHSHMatmul", "cublasLtSSSMatmul"]
)
def test_a_call_of_cublas_says_which_algorithm_ran_not_which_was_asked_for(function: str) -> None:
    said = [*cublas(GEMM, at=100), *lt(function, TYPED, at=150), *lt(function, HALVES, at=160)]
    (call,) = calls(said)
    assert (call.function, call.start_ns) == ("cublasGemmEx", 100)
    assert call.values["algo"] == RAN
    assert call_rows([call], {})["attr.algorithm"].to_list() == [RAN]


def test_an_algorithm_is_not_given_to_a_call_of_another_thread_or_library() -> None:
    asked = "CUBLAS_GEMM_DEFAULT_TENSOR_OP"
    typed = lt("cublasLtTSTMatmul", TYPED, at=300)
    elsewhere = calls([*cublas(GEMM, thread=2), *typed])
    assert [call.values["algo"] for call in elsewhere] == [asked]
    in_cudnn = calls([*cublas(GEMM), cudnn(CONVOLUTION, 250), *typed])
    assert [call.values["algo"] for call in in_cudnn] == [asked, "CUDNN_CONVOLUTION_FWD_ALGO_GEMM"]
    after = calls([*cublas(GEMM), *lt("cublasLtMatmul", HALVES, at=200), *typed])
    assert [call.function for call in after] == ["cublasGemmEx", "cublasLtMatmul"]
    assert after[0].values["algo"] == asked


def test_both_spellings_of_cudnn_are_read() -> None:
    manual = CONVOLUTION.replace("CuDNN (v92600 51)", "cuDNN (v90000)")
    (call,) = calls([cudnn(manual, 50)])
    assert (call.library, call.function) == ("cuDNN 9.0.0", "cudnnConvolutionForward")


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


def test_rows_of_calls_that_do_not_tell_their_end_have_none() -> None:
    made = calls([*cublas(GEMM, at=100), cudnn(CONVOLUTION, 50, thread=2)])
    rows = call_rows(made, {1: 140_000_000_000_001})
    assert rows.select("name", "start_ns", "end_ns", "thread", "provenance").rows() == [
        ("cudnnConvolutionForward", 50, None, -2, "recorded"),
        ("cublasGemmEx", 100, None, 140_000_000_000_001, "recorded"),
    ]
    assert rows["attr.placement"].to_list() == ["start", "start"]
    assert rows["attr.flops"].to_list() == [None, 12000]
    assert rows["attr.problem"].to_list() == ["xDesc[1,3,32,32]", "m10 n20 k30 NT"]
    assert rows["attr.cuda_stream"].to_list() == ["0x70", "0x70"]


def test_no_messages_are_no_rows() -> None:
    assert call_rows(calls([]), {}).height == 0


def test_messages_that_make_no_sense_are_passed_over() -> None:
    odd = [cudnn("?", 1), *cublas("i!  m: type=int; val=1\nI! cuBLAS"), Message(9, 0, 1, 0, "x")]
    assert calls(odd) == []
