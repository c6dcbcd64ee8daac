"""A baseline compiled for inputs without memory is what a lane finds on disk, and nothing is run meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import TESTS, suite
from torch._dynamo.utils import counters

from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.task import InputSet, Task
from kernrl.verifier.base.precision import policy_flags
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.judge.inputs import TaskInputs
from kernrl.verifier.judge.memory_estimate import without_contents
from kernrl.verifier.judge.regimes import NOMINAL
from kernrl.verifier.replay.compiled_reference import CompiledReference
from kernrl.verifier.replay.task_preparer import TaskPreparer, claimed, compile_without_memory


def memory(nbytes: int) -> torch.Tensor:
    """Stands in for memory that is only claimed: whatever is computed from it is NaN."""
    return torch.full((nbytes,), 0xFF, dtype=torch.uint8)


def small_set(name: str) -> tuple[Task, InputSet]:
    task = suite.fixture_task(name)
    return task, task.input_sets[-1]


@pytest.mark.parametrize("name", ["conv_bn_relu", "add_layernorm", "rope_qk", "token_embedding_norm", "gqa_attention"])
def test_claimed_inputs_are_laid_out_as_real_ones(name: str) -> None:
    task, input_set = small_set(name)
    with without_contents():
        made = TaskInputs(task, input_set, "fp32", "meta")
    module, arguments = claimed(made, memory)
    real = TaskInputs(task, input_set, "fp32", "cpu")

    def layout(x: torch.Tensor) -> tuple[object, ...]:
        return x.shape, x.stride(), x.dtype, x.storage_offset(), x.untyped_storage().nbytes(), x.device, x.requires_grad

    tensors = [[*m.state_dict(keep_vars=True).values(), *m.buffers()] for m in (module, real.module)]
    assert [layout(x) for x in tensors[0]] == [layout(x) for x in tensors[1]]
    assert all(not isinstance(x, torch.Tensor) or x.device.type == "cpu" for x in arguments)
    shown = [[layout(x) for x in args if isinstance(x, torch.Tensor)] for args in (arguments, real.arguments)]
    assert shown[0] == shown[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["add_layernorm", "linear_groupnorm_leaky"])
def test_a_lane_finds_on_disk_what_was_compiled_without_memory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()
    task, input_set = small_set(name)
    counters.clear()
    compile_without_memory(task, input_set, "fp32", ["compile"], memory)
    compiled = counters["aot_autograd"]["autograd_cache_miss"] + counters["inductor"]["fxgraph_cache_miss"]
    assert compiled > 0
    torch.compiler.reset()
    counters.clear()
    real = TaskInputs(task, input_set, "fp32", "cpu")
    real.draw(Draw(input_set.name, NOMINAL, 1))
    reference = CompiledReference(real.module, "compile")
    with policy_flags("fp32", autotune=True), torch.no_grad():
        reference.compile(real.arguments)
        assert counters["aot_autograd"]["autograd_cache_miss"] + counters["inductor"]["fxgraph_cache_miss"] == 0
        assert counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"] > 0
        torch.testing.assert_close(reference(*real.arguments), real.module(*real.arguments), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_task_is_rehearsed_without_a_gpu() -> None:
    task = load_tasks(TESTS / "foreign" / "climate_film_big.py").tasks[0]
    server = TaskPreparer()
    [found] = server.memory(task, "tf32", ["full"]).values()
    assert found is not None
    assert found.block > 1 << 30
    assert server.healthy()


def test_a_reference_that_cannot_be_rehearsed_is_guessed() -> None:
    task = Task(
        "odd",
        """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x.numpy()
def get_inputs():
    return [torch.rand(4)]
def get_init_inputs():
    return []
""",
    )
    assert TaskPreparer().memory(task, "fp32", ["full"]) == {"full": None}
