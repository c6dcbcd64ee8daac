"""Every private name of torch and triton the verifier uses: when a release moves one, the test that breaks here names it."""

import importlib.metadata
import os
import re
import sys

import pytest
import torch
import triton
import triton.language as tl
from torch.utils._python_dispatch import TorchDispatchMode

from kernrl.verifier.base import compat
from kernrl.verifier.base.devices import ARCHITECTURES, arch_number, device_for
from kernrl.verifier.trace.launch import fake_cuda
from kernrl.verifier.trace.recorder import Recorder
from kernrl.verifier.trace.recording import recording

TARGET = compat.GPUTarget("cuda", 90, 32)


@triton.jit
def scale(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * factor, mask=i < n)


@triton.jit
def wrong(x_ptr):
    i = tl.program_id(0)
    tl.store(x_ptr + i, tl.nowhere(i))


class Driver:
    def get_current_target(self):
        return TARGET

    def get_current_device(self):
        return 0


@pytest.fixture(scope="module")
def special():
    compat.set_driver(Driver())
    x = torch.empty(64, device="meta")
    with compat.no_torch_functions():
        return compat.specialise(scale, (x, x, 64, 2.0), {"BLOCK": 32, "num_warps": 2})


def test_the_versions_are_those_written_against():
    major, minor = (int(v) for v in importlib.metadata.version("triton").split(".")[:2])
    assert (3, 6) <= (major, minor) < (3, 10)


def test_storages_have_an_identity():
    x = torch.empty(4, 4, device="meta")
    assert compat.storage_key(x) == compat.storage_key(x.t()) != compat.storage_key(torch.empty(4, device="meta"))


def test_modes_can_be_left_for_a_moment():
    class Refuse(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            raise AssertionError("asked")

    with Refuse(), compat.no_dispatch():
        assert torch.ones(2).sum().item() == 2.0


@pytest.mark.slow
def test_nothing_stands_between_an_operator_and_a_mode_that_is_called_directly():
    callers = []

    class Wrapped(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            callers.append(sys._getframe(1).f_code.co_filename)
            return func(*args, **(kwargs or {}))

    @compat.called_directly
    class Direct(Wrapped):
        __torch_dispatch__ = Wrapped.__torch_dispatch__

    for mode in (Wrapped(), Direct()):
        with mode:
            torch.ones(2)
    assert callers[0] != callers[1] == __file__


def test_function_modes_can_be_left_for_a_moment():
    class Refuse(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            raise AssertionError("asked")

    with Refuse(), compat.no_torch_functions():
        assert torch.ones(2).device.type == "cpu"


def test_a_default_device_is_seen():
    assert not compat.has_default_device()
    before = torch.get_default_device()
    torch.set_default_device("meta")
    try:
        assert compat.has_default_device()
    finally:
        torch.set_default_device(None)
    assert not compat.has_default_device()
    assert torch.get_default_device() == before


def test_the_search_of_cudnn_is_answered_by_its_getter():
    assert compat.cudnn_searches().getter() is torch.backends.cudnn.benchmark


def test_specialise(special):
    assert special.signature == {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32", "factor": "fp32", "BLOCK": "constexpr"}
    assert special.constexprs == {(4,): 32}
    assert dict(special.bound)["n"] == 64
    assert special.options.num_warps == 2


def test_make_ttir(special):
    text = compat.make_ttir(scale, special, TARGET)
    assert "tt.func public @scale(%arg0: !tt.ptr<f32> {tt.divisibility = 16 : i32}" in text
    assert "loc(" not in text


def test_hints_can_be_changed_without_lowering_anew(special):
    x = torch.empty(64, device="meta")
    text = compat.make_ttir(scale, special, TARGET)
    for n in (63, 64):
        with compat.no_torch_functions():
            other = compat.specialise(scale, (x, x, n, 2.0), {"BLOCK": 32, "num_warps": 2})
        again = compat.rehint(text, other)
        assert again == compat.make_ttir(scale, other, TARGET)
        assert (again == text) == (n == 64)
    assert compat.rehint("module {\n  tt.func public @f(%arg0: i32) attributes {} {", special) is None


def test_a_specialisation_is_packed_once(monkeypatch):
    packed, pack = [], triton.runtime.jit.JITFunction._pack_args
    monkeypatch.setattr(triton.runtime.jit.JITFunction, "_pack_args", lambda *args: [packed.append(1), pack(*args)][1])
    x = torch.empty(64, device="meta")
    with compat.no_torch_functions():
        first, again, other, more = (
            compat.specialise(scale, (x, x, n, 2.0), {"BLOCK": block, "num_warps": warps})
            for n, block, warps in ((80, 8, 2), (96, 8, 2), (96, 16, 2), (96, 8, 4))
        )
    assert len(packed) == 3
    assert (first.bound["n"], again.bound["n"]) == (80, 96)
    assert (first.constexprs, other.constexprs, more.options.num_warps) == ({(4,): 8}, {(4,): 16}, 4)


def test_checks_of_overflow_are_generated_where_they_assert_something(monkeypatch):
    semantic, generated = triton.language.semantic.TritonSemantic, []
    check = semantic.binary_op_sanitize_overflow_impl
    monkeypatch.setattr(semantic, "binary_op_sanitize_overflow_impl", lambda *args: [generated.append(1), check(*args)][1])
    compat.set_driver(Driver())
    x = torch.empty(64, device="meta")
    with compat.no_torch_functions():
        plain, debug = (
            compat.specialise(scale, (x, x, 64, 2.0), {"BLOCK": 32, "num_warps": 2, "debug": debug}) for debug in (False, True)
        )
    before = [compat.make_ttir(scale, one, TARGET) for one in (plain, debug)]
    assert generated
    assert ["tt.assert" in text for text in before] == [False, True]
    compat.skip_unused_checks()
    generated.clear()
    assert compat.make_ttir(scale, plain, TARGET) == before[0]
    assert not generated
    assert compat.make_ttir(scale, debug, TARGET) == before[1]


def test_without_places_in_the_source_a_kernel_is_the_same_and_an_error_names_its_line(monkeypatch, special):
    generator = triton.compiler.code_generator.CodeGenerator
    noted, note = [], generator.visit
    monkeypatch.setattr(generator, "visit", lambda self, node: [noted.append(node), note(self, node)][1])
    monkeypatch.setattr(generator, "_maybe_set_loc_to_name", generator._maybe_set_loc_to_name)
    compat.set_driver(Driver())
    x = torch.empty(64, device="meta")
    with compat.no_torch_functions():
        odd = compat.specialise(wrong, (x,), {})

    def error():
        with pytest.raises(triton.compiler.errors.CompilationError) as raised:
            compat.make_ttir(wrong, odd, TARGET)
        return str(raised.value)

    before = compat.make_ttir(scale, special, TARGET), error()
    assert noted
    compat.skip_locations()
    noted.clear()
    assert (compat.make_ttir(scale, special, TARGET), error()) == before
    assert not noted
    assert "at 3:" in before[1]
    assert "tl.nowhere(i)" in before[1]


def test_hashes_are_found_ahead():
    @triton.jit
    def late(x):
        return x

    assert late.hash is None
    compat.hash_libraries()
    assert late.hash == late.cache_key


def test_an_excerpt_of_libdevice_gives_the_same_machine_code(special, tmp_path, monkeypatch):
    path = tmp_path / "k.ttir"
    kernel = compat.make_ttir(scale, special, TARGET)
    path.write_text(re.sub(r"(%\w+) = arith.mulf (%\w+), (%\w+)( : .*)", r"%e = math.erf \2\4\n    \1 = math.log %e\4", kernel))

    def ptx() -> str:
        module, backend, options = compat.parse_ttir(str(path), TARGET, {"num_warps": 2})
        stages, metadata = compat.stages_of(backend, options), compat.metadata_of(TARGET, options)
        for stage in ("ttgir", "llir", "ptx"):
            module = stages[stage](module, metadata)
        # comments, and labels and private names, are numbered by what else was linked
        return re.sub(r"//.*|\$L__BB\S+|_\$_str[\w$]*", "", module)

    linked = []
    link = compat.llvm.link_extern_libs
    monkeypatch.setattr(compat.llvm, "link_extern_libs", lambda module, paths: [linked.append(paths), link(module, paths)])
    whole = ptx()
    texts = compat.excerpts({"__nv_erff": 1, "__nv_logf": 1, "__nv_powf": 2}, TARGET)
    assert [re.findall(r"define float @(\w+)", text) for text in texts.values()] == [[symbol] for symbol in texts]
    compat.link_excerpts(texts)
    linked.clear()
    assert ptx() == whole
    assert len(linked) == 2
    assert not any("libdevice" in path for paths in linked for path in paths)
    path.write_text(path.read_text().replace("math.erf", "math.cos"))
    assert "entry" in ptx()
    assert "libdevice" in linked[-1][0]


def test_parse_and_lower(special, tmp_path):
    path = tmp_path / "k.ttir"
    text = compat.make_ttir(scale, special, TARGET)
    path.write_text(text)
    module, backend, options = compat.parse_ttir(str(path), TARGET, {"num_warps": 2, "num_stages": 3})
    assert module.str_nodebug() == text, "Triton prints what it read"
    assert compat.entry(module) == ("scale", ["*f32", "*f32", "i32", "f32"])
    assert {"tt.load", "tt.store", "tt.func"} <= {name for name, _ in compat.operations(module)}
    cubin, metadata = compat.lower(module, backend, options, TARGET)
    assert cubin.startswith(b"\x7fELF")
    assert {"name", "shared", "num_warps", "global_scratch_size", "global_scratch_align"} <= set(metadata)


def test_runs_can_be_replaced(monkeypatch):
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    monkeypatch.setattr(JITFunction, "run", JITFunction.run)
    monkeypatch.setattr(Autotuner, "run", Autotuner.run)
    seen = []
    compat.replace_run(
        lambda fn, *args, grid, warmup, **kwargs: seen.append((args, grid, warmup)),
        lambda *args, **kwargs: seen.append("tuned"),
        lambda tuner: "best",
    )
    scale[(2,)](1, BLOCK=32)  # pyright: ignore[reportCallIssue]
    triton.autotune([triton.Config({"BLOCK": 32})], key=[])(scale)[(1,)](1)
    assert seen == [((1,), (2,), False), "tuned"]


def test_redrawing_initialisation_is_known_by_its_frame():
    """From torch 2.13 it asks whether a number is out of range; a recording answers no."""
    assert not compat.redraws(sys._getframe())
    with recording(Recorder()):
        torch.nn.init.trunc_normal_(torch.empty(4, 4, device="cuda"))


def test_names_of_generated_code_are_answered(monkeypatch):
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", None, raising=False)
    monkeypatch.setattr(torch._C._dynamo.guards, "_empty_strided_cuda", torch._C._dynamo.guards._empty_strided_cuda)
    compat.answer_generated_code()
    assert torch._C._cuda_getCurrentRawStream(0) == 0
    with recording(Recorder()):
        assert torch._C._dynamo.guards._empty_strided_cuda((4, 8), (8, 1), torch.float16).is_cuda


def test_the_pretended_gpu_is_in_the_table():
    assert all(device_for(arch) for arch in ARCHITECTURES)
    assert arch_number("sm_90") == 90
    assert {"Stream", "Event", "CUDAGraph"} <= set(fake_cuda.REFUSED)
    with pytest.raises(ValueError, match="no architecture"):
        arch_number("90")


def test_norms_and_softmax_can_be_taken_apart():
    aten, parts = torch.ops.aten, compat.normalisations()
    x = torch.randn(3, 8, dtype=torch.float64)
    apart = parts[aten._softmax.default](x, -1, False)
    assert torch.allclose(apart, torch.softmax(x, -1))
    for name in ("native_layer_norm", "native_group_norm", "native_batch_norm", "_log_softmax"):
        assert getattr(aten, name).default in parts


def test_torch_can_ask_nvml_for_gpus(monkeypatch: pytest.MonkeyPatch):
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    monkeypatch.delenv(name, raising=False)
    with compat.asking_nvml():
        assert torch.cuda._nvml_based_avail()
    assert not torch.cuda._nvml_based_avail()
    monkeypatch.setenv(name, "0")
    with compat.asking_nvml():
        assert torch.cuda._nvml_based_avail()
    assert os.environ[name] == "0"
    assert not compat.forks_cannot_use_cuda()


@pytest.mark.slow
def test_versions_are_hashed_once(monkeypatch: pytest.MonkeyPatch):
    from torch._inductor import codecache
    from torch._inductor.runtime import triton_compat

    compat.hash_versions()
    monkeypatch.setattr("builtins.open", None)
    assert codecache.torch_key()
    assert triton_compat.triton_key()
