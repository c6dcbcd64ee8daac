"""TTIR becomes machine code by Triton's own pipeline, behind walls; and nothing else becomes machine code."""

import re
import threading
import time
from concurrent.futures import Future
from dataclasses import replace

import pytest
from support.front import HEAD, compiler, dense, module, plan_of, spec

from kernrl.errors import InfrastructureError
from kernrl.verifier.base import compat
from kernrl.verifier.base.verdict import Rejection, Status
from kernrl.verifier.compile.compiler import Compiler
from kernrl.verifier.plan.compiled import CompiledKernel
from kernrl.verifier.plan.launchable import check_compiled
from kernrl.verifier.plan.plan import KernelSource
from kernrl.verifier.sandbox.sandbox import Sandbox, Session

pytestmark = pytest.mark.slow  # the tracer and the compiler take seconds to start


@pytest.fixture(scope="module")
def kernel() -> KernelSource:
    return plan_of(module("return launch(x)")).kernels[0]


def compiled(kernel: KernelSource, target: str = "sm_90", timeout_s: float = 60.0) -> CompiledKernel | Rejection:
    return compiler().compile([kernel], target, timeout_s)[0]


@pytest.mark.parametrize("target", ["sm_90", "sm_80"])
def test_a_kernel_compiles_to_a_cubin(kernel, target):
    made = compiled(kernel, target)
    assert isinstance(made, CompiledKernel)
    assert made.cubin.startswith(b"\x7fELF")
    assert made.name.encode() in made.cubin
    assert (made.name, made.parameters, made.num_warps, made.target) == ("double", ("*f32", "*f32", "i32"), 4, target)
    assert (made.shared_bytes, made.global_scratch_bytes) == (0, 0)
    assert check_compiled(made, ("*f32", "*f32", "i32")) is None


def test_the_launch_takes_the_parameters_and_two_scratch_pointers(kernel, tmp_path):
    path = tmp_path / "k.ttir"
    path.write_text(kernel.ttir)
    target = compat.GPUTarget("cuda", 90, 32)
    module, backend, options = compat.parse_ttir(str(path), target, {"num_warps": 4})
    stages, metadata = compat.stages_of(backend, options), compat.metadata_of(target, options)
    for name in ("ttgir", "llir", "ptx"):
        module = stages[name](module, metadata)
    entry = re.search(r"\.entry double\((.*?)\)", module, re.DOTALL)
    assert entry
    made = compiled(kernel)
    assert isinstance(made, CompiledKernel)
    widths = re.findall(r"\.param \.([a-z]\d+)", entry[1])
    assert widths == ["u64", "u64", "u32", "u64", "u64"]
    assert len(widths) == len(made.parameters) + 2


def test_the_same_kernel_is_compiled_once(kernel):
    first, again = compiled(kernel), compiled(replace(kernel, function="other name"))
    assert first is again
    assert compiled(replace(kernel, num_warps=8)) is not first


@pytest.mark.slow
@pytest.mark.parametrize(("taken", "processes"), [(0, 3), (1, 2), (2, 1)])
def test_kernels_are_compiled_side_by_side_on_idle_cores_alone(kernel, monkeypatch, taken, processes):
    slots = threading.BoundedSemaphore(3)
    for _ in range(taken):
        slots.acquire()
    box, opened = Compiler(3, slots=slots), []
    real = Sandbox.open
    monkeypatch.setattr(Sandbox, "open", lambda self, timeout_s: opened.append(1) or real(self, timeout_s))
    made = box.compile([replace(kernel, num_warps=warps) for warps in (1, 2, 4)], "sm_90")
    box.close()
    assert [isinstance(one, CompiledKernel) and one.num_warps for one in made] == [1, 2, 4]
    assert len(opened) == processes


@pytest.mark.slow
def test_a_cache_on_disk_serves_the_next_compiler(kernel, tmp_path, monkeypatch):
    first = Compiler(1, cache_dir=tmp_path)
    made = first.compile([kernel], "sm_90")
    assert isinstance(made[0], CompiledKernel)
    first.close()
    second = Compiler(1, cache_dir=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Sandbox, "open", lambda self, timeout_s: pytest.fail("compiled again"))
        assert second.compile([kernel], "sm_90") == made
    (file,) = tmp_path.glob("*.bin")
    file.write_bytes(file.read_bytes()[:-1])
    third = Compiler(1, cache_dir=tmp_path)
    assert third.compile([kernel], "sm_90") == made, "a damaged file is compiled again"
    third.close()


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_costs_no_verdict(kernel):
    box = Compiler(1, cache_dir=__import__("pathlib").Path("/dev/null/cache"))
    assert isinstance(box.compile([kernel], "sm_90")[0], CompiledKernel)
    box.close()


@pytest.mark.parametrize(
    ("old", "new", "status", "says"),
    [
        ("module {", " module {", Status.POLICY, "own notation"),
        ("module {", "// hidden\nmodule {", Status.POLICY, "own notation"),
        ("arith.mulf", "arith.mulf_", Status.COMPILE_ERROR, ""),
        ("module {\n", "nonsense", Status.COMPILE_ERROR, ""),
    ],
)
def test_ir_that_is_not_triton_s_is_refused(kernel, old, new, status, says):
    rejection = compiled(replace(kernel, ttir=kernel.ttir.replace(old, new, 1)))
    assert isinstance(rejection, Rejection)
    assert rejection.status is status
    assert says in rejection.reason


def with_line(line: str) -> str:
    """A kernel's IR with one more line, its `%8` a tile of float32."""
    return f"""module {{
  tt.func public @k(%arg0: !tt.ptr<f32>) attributes {{noinline = false}} {{
    %0 = tt.make_range {{end = 64 : i32, start = 0 : i32}} : tensor<64xi32>
    %1 = tt.splat %arg0 : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %2 = tt.addptr %1, %0 : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    %3 = tt.load %2 : tensor<64x!tt.ptr<f32>>
    {line}
    tt.store %2, %4 : tensor<64x!tt.ptr<f32>>
    tt.return
  }}
}}
"""


ASSEMBLY = (
    '%4 = tt.elementwise_inline_asm "mov.b32 $0, $1;" {constraints = "=r,r", packed_element = 1 : i32, pure = true} %3 '
    ": tensor<64xf32> -> tensor<64xf32>"
)
FOREIGN = (
    '%4 = tt.extern_elementwise %3 {libname = "", libpath = "", pure = true, symbol = "SYMBOL"} '
    ": (tensor<64xf32>) -> tensor<64xf32>"
)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (ASSEMBLY, "inline assembly"),
        (FOREIGN.replace("SYMBOL", "evil"), "evil"),
        (FOREIGN.replace("SYMBOL", "vprintf"), "vprintf"),
    ],
)
def test_foreign_code_is_refused(kernel, line, says):
    rejection = compiled(replace(kernel, ttir=with_line(line)))
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.POLICY
    assert says in rejection.reason


def test_libdevice_is_welcome(kernel):
    assert isinstance(compiled(replace(kernel, ttir=with_line(FOREIGN.replace("SYMBOL", "__nv_tanhf")))), CompiledKernel)


def test_shared_memory_over_the_limit_is_told(kernel):
    made = compiled(kernel)
    assert isinstance(made, CompiledKernel)
    rejection = check_compiled(replace(made, shared_bytes=232_449), made.parameters)
    assert rejection is not None
    assert rejection.status is Status.COMPILE_ERROR
    assert "shared memory" in rejection.reason
    assert check_compiled(replace(made, shared_bytes=232_448), made.parameters) is None


def test_a_tile_beyond_all_registers_is_told_at_once(kernel):
    wide = replace(kernel, ttir=kernel.ttir.replace("64x", "1048576x").replace("end = 64", "end = 1048576"))
    rejection = compiled(wide)
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.COMPILE_ERROR
    assert "smaller blocks" in rejection.reason


PRODUCT = """
@triton.jit
def product(x_ptr, w_ptr, y_ptr, M: tl.constexpr, N: tl.constexpr, K{DEPTH}, BLOCK: tl.constexpr, STEP: tl.constexpr):
    pid = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(M, BLOCK), tl.cdiv(N, BLOCK)
    band, inside = pid // (8 * tiles_n), pid % (8 * tiles_n)
    height = tl.minimum(tiles_m - band * 8, 8)
    m = (band * 8 + inside % height) * BLOCK + tl.arange(0, BLOCK)[:, None]
    n = inside // height * BLOCK + tl.arange(0, BLOCK)[None, :]
    acc = tl.zeros([BLOCK, BLOCK], dtype=tl.float32)
    for start in range(0, K, STEP):
        ka = start + tl.arange(0, STEP)[None, :]
        kb = start + tl.arange(0, STEP)[:, None]
        x = tl.load(x_ptr + m * K + ka, mask=(m < M) & (ka < K), other=0.0)
        w = tl.load(w_ptr + kb * N + n, mask=(n < N) & (kb < K), other=0.0)
        acc = tl.dot(x, w, acc, input_precision="tf32")
    tl.store(y_ptr + m * N + n, tl.abs(acc), mask=(m < M) & (n < N))


class ModelNew(nn.Module):
    def forward(self, x, w):
        y = torch.empty(x.shape[0], w.shape[1], device=x.device)
        product[(520,)](x, w, y, 8320, 1024, {K}, BLOCK=128, STEP=32, num_warps=8, num_stages=3)
        return y
"""


def test_products_that_ptxas_loses_are_told():
    """On a GPU the result of this kernel is zeros. Without one, its meaning alone would be judged."""
    head = HEAD.partition("@triton.jit")[0]

    def objection(depth: str, k: int) -> Rejection | None:
        source = head + PRODUCT.replace("{DEPTH}", depth).replace("{K}", str(k))
        [kernel] = plan_of(source, spec(dense(8320, k), dense(k, 1024), precision="tf32")).kernels
        made = compiled(kernel)
        assert isinstance(made, CompiledKernel)
        return check_compiled(made, made.parameters)

    lost = objection(": tl.constexpr", 96)
    assert lost is not None
    assert lost.status is Status.COMPILE_ERROR
    assert "ptxas loses the products of product" in lost.reason
    assert "not tl.constexpr" in lost.reason
    assert objection("", 96) is None
    assert objection(": tl.constexpr", 256) is None


def test_one_kernel_s_failure_leaves_the_others(kernel):
    made, refused, again = compiler().compile([kernel, replace(kernel, ttir="module {\n}\n"), kernel], "sm_90")
    assert made is again
    assert isinstance(made, CompiledKernel)
    assert isinstance(refused, Rejection)


@pytest.mark.slow
def test_a_compiler_that_takes_too_long_is_a_timeout_and_not_remembered(kernel):
    slow = replace(plan_of(HEAD + _SLOW).kernels[0], num_warps=1)
    rejection = compiled(slow, timeout_s=0.3)
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.TIMEOUT
    assert isinstance(compiled(kernel), CompiledKernel), "the next kernel is served"


@pytest.mark.slow
def test_a_machine_that_is_busy_with_others_refuses_no_kernel(kernel, monkeypatch):
    real = Session.send

    def late(session, payload):
        time.sleep(1.0)
        real(session, payload)

    box = Compiler(1)
    monkeypatch.setattr(Session, "send", late)
    made = box.compile([replace(kernel, num_warps=warps) for warps in (1, 2)], "sm_90", timeout_s=1.0)
    assert [isinstance(one, CompiledKernel) for one in made] == [True, True]
    box.close()


@pytest.mark.slow
@pytest.mark.parametrize("timeout_s", [0.5, 2.0])
def test_ptxas_counts_and_what_takes_no_cpu_time_ends_too(kernel, monkeypatch, timeout_s):
    slow = plan_of(HEAD + _SLOW.replace("range(20)", "range(12)")).kernels[0]
    before = time.monotonic()
    rejections = Compiler(1).compile([replace(slow, num_warps=warps) for warps in (1, 2)], "sm_90", timeout_s)
    assert {one.status for one in rejections if isinstance(one, Rejection)} == {Status.TIMEOUT}
    monkeypatch.setattr(Session, "send", lambda session, payload: None)
    [waiting] = Compiler(1).compile([kernel], "sm_90", timeout_s)
    assert isinstance(waiting, Rejection)
    assert waiting.status is Status.TIMEOUT
    assert time.monotonic() - before < 60


_SLOW = """
@triton.jit
def slow(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    for _ in tl.static_range(20):
        v = tl.sort(tl.erf(v) + tl.sin(v))
    tl.store(y + i, v)
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        slow[(1,)](x, y, B=256)
        return y
"""


def asked(box: Compiler, kernel: KernelSource) -> Future:
    """What comes of a compile in a thread of its own, which holds nobody up if it hangs."""
    future = Future()

    def ask():
        try:
            future.set_result(box.compile([kernel], "sm_90"))
        except InfrastructureError as error:
            future.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    return future


@pytest.mark.slow
def test_whoever_waits_when_the_compiler_is_closed_is_told(kernel):
    box = Compiler(1)
    assert isinstance(box.compile([kernel], "sm_90")[0], CompiledKernel)
    waiting = [asked(box, replace(kernel, num_warps=warps)) for warps in (1, 2, 8)]
    box.close()
    waiting += [asked(box, replace(kernel, num_stages=4)) for _ in range(2)]
    assert all(isinstance(one.exception(30), InfrastructureError) for one in waiting)


@pytest.mark.slow
def test_a_fork_server_that_dies_is_told_to_who_waits(kernel, monkeypatch):
    def died(session):
        raise InfrastructureError("the sandbox's fork server died; its children are lost")

    box = Compiler(1)
    box.start()
    monkeypatch.setattr(Session, "recv", lambda session: None)
    monkeypatch.setattr(Session, "end", died)
    assert isinstance(asked(box, kernel).exception(30), InfrastructureError)
    box.close()


def test_what_ptxas_refuses_is_told_in_its_words_alone():
    """Triton's own text has the names of its files, and a command that runs ptxas again."""
    source = HEAD.replace("tl.load(x_ptr + i,", "tl.load(x_ptr + i, cache_modifier='.cg', eviction_policy='evict_last',")
    [kernel] = plan_of(source + module("return launch(x)").removeprefix(HEAD)).kernels
    refused = compiled(kernel)
    assert isinstance(refused, Rejection)
    assert refused.status is Status.COMPILE_ERROR
    assert refused.reason == "ptxas: Modifier '.evict_last' cannot be combined with modifier '.cg'."
