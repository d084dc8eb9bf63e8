from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xsp_levels.kernel.inductor import parse, sources

# As Inductor of PyTorch 2.15 writes it, but for the kernels' bodies.
MODULE = """\
# AOT ID: ['0_inference']
from torch._inductor.async_compile import AsyncCompile
async_compile = AsyncCompile()


# kernel path: /tmp/cache/ab/cabbage.py
# Topologically Sorted Source Nodes: [mul, e], Original ATen: [aten.mul, aten.exp]
# Source node to ATen node mapping:
#   e => exp
#   mul => mul
# Graph fragment:
#   %mul : Tensor "f32[4][1]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.mul.Tensor]
#   return %exp
triton_poi_fused_mul_exp_0 = async_compile.triton('triton_poi_fused_mul_exp_0', '''
import triton

@triton_heuristics.pointwise(filename=__file__)
@triton.jit
def triton_poi_fused_mul_exp_0(in_out_ptr0, xnumel, XBLOCK : tl.constexpr):
    tl.store(in_out_ptr0, tmp0, xmask)
''', device_str='cuda')


# kernel path: /tmp/cache/cd/cdrom.py
# Topologically Sorted Source Nodes: [total], Original ATen: [aten.sum]
# Source node to ATen node mapping:
#   total => sum_1
triton_red_fused_sum_1 = async_compile.triton('triton_red_fused_sum_1', '''
import triton
''', device_str='cuda')


# Original path: /home/me/model.py
mine_0 = async_compile.triton('mine', '''
import triton
''', device_str='cuda')

async_compile.wait(globals())
del async_compile

class Runner:
    def call(self, args):
        with torch.cuda._DeviceGuard(0):
            torch.cuda.set_device(0)
            buf0 = empty_strided_cuda((4, ), (1, ), torch.float32)
            # Topologically Sorted Source Nodes: [linear], Original ATen: [aten.t, aten.addmm]
            extern_kernels.addmm(arg1_1, arg2_1, arg0_1, alpha=1, beta=1, out=buf0)
            # Topologically Sorted Source Nodes: [mul, e], Original ATen: [aten.mul, aten.exp]
            raw_stream0 = get_raw_stream(0)
            triton_poi_fused_mul_exp_0.run(buf0, 4, stream=raw_stream0)
            # Topologically Sorted Source Nodes: [total], Original ATen: [aten.sum]
            workspace_0 = empty_strided_cuda((8, ), (1, ), torch.uint8)
            workspace_0.zero_()
            raw_stream0 = get_raw_stream(0)
            triton_red_fused_sum_1.run(buf0, buf1, workspace_0, 4, stream=raw_stream0)
"""
EXP, SUM = "triton_poi_fused_mul_exp_0", "triton_red_fused_sum_1"


def generated(ops: str, nodes: str, name: str = EXP, kernel: str = EXP) -> str:
    said = f"# Topologically Sorted Source Nodes: [{nodes}], Original ATen: [{ops}]"
    return f"{said}\n{name} = async_compile.triton('{kernel}', '''\n''')\n"


def loaded(monkeypatch: pytest.MonkeyPatch, *paths: Path | None) -> None:
    modules = [SimpleNamespace(__file__=path and str(path)) for path in paths]
    cache = SimpleNamespace(PyCodeCache=SimpleNamespace(modules=modules))
    monkeypatch.setitem(sys.modules, "torch._inductor.codecache", cache)


def written(folder: Path, *texts: str) -> list[Path]:
    paths = [folder / f"{number}.py" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return paths


def test_kernels_have_the_operators_and_nodes_that_stand_above_them() -> None:
    assert parse(MODULE) == {
        EXP: ("aten.mul, aten.exp", "mul, e"),
        SUM: ("aten.sum", "total"),
    }


def test_a_kernel_that_is_called_for_other_operators_has_none() -> None:
    again = """\
            # Topologically Sorted Source Nodes: [total], Original ATen: [aten.mean]
            triton_red_fused_sum_1.run(buf0, buf2, 4, stream=raw_stream0)
"""
    assert parse(MODULE + again)[SUM] == ("", "total")


@pytest.mark.parametrize(
    ("other", "known"),
    [
        (("aten.mul", "a"), ("aten.mul", "a")),
        (("aten.mul", "b"), ("aten.mul", "")),
        (("aten.div", "b"), ("", "")),
    ],
)
def test_of_a_name_in_two_modules_only_what_they_agree_on_is_known(
    other: tuple[str, str], known: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loaded(monkeypatch, *written(tmp_path, generated("aten.mul", "a"), generated(*other)))
    assert sources([EXP]) == {EXP: known}


def do_nothing(*args: Any, **keywords: Any) -> None:
    """Stand in for a kernel: there may be no compiler, and no device."""


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Return a function that has Inductor write a module for another, and returns its text."""
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    pytest.importorskip("triton", reason="needs Triton: pip install triton")
    inner = pytest.importorskip(
        "torch._inductor.async_compile", reason="needs Inductor: pip install 'torch>=2.4'"
    )
    cache = pytest.importorskip(
        "torch._inductor.codecache", reason="needs Inductor: pip install 'torch>=2.4'"
    ).PyCodeCache

    def compile_it(function: Callable[..., Any], backend: str = "triton") -> str:
        how = {"cpu_backend": backend, "compile_threads": 1}
        with torch._inductor.config.patch(how):
            torch.compile(function)(torch.ones(64, 64))
        return Path(cache.modules[-1].__file__).read_text()

    if importlib.util.find_spec("tqdm") is not None:  # it would start a thread for good
        monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    kinds = {"triton": SimpleNamespace(run=do_nothing), "cpp_pybinding": do_nothing}
    for name, kernel in kinds.items():
        monkeypatch.setattr(inner.AsyncCompile, name, lambda *a, k=kernel, **more: k)
    monkeypatch.setattr("torch.utils._triton.triton_hash_with_backend", str)  # asks a GPU
    monkeypatch.setattr(cache, "modules", [])
    torch._dynamo.reset()
    yield compile_it
    torch._dynamo.reset()


@pytest.mark.slow
def test_what_inductor_writes_for_triton_is_read(compiled: Callable[..., str]) -> None:
    name = "triton_poi_fused_add_relu_0"
    compiled(lambda x: (x + 1).relu())
    assert sources([name]) == {name: ("aten.add, aten.relu", "add, relu")}


@pytest.mark.slow
def test_what_inductor_writes_above_calls_of_libraries_is_no_kernels(
    compiled: Callable[..., str],
) -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler: apt-get install g++")
    text = compiled(lambda x: (x @ x + 1).relu(), backend="cpp")
    assert "Original ATen: [aten.mm]" in text
    assert "cpp_fused_add_relu_0 = async_compile.cpp_pybinding" in text
    assert parse(text) == {}
