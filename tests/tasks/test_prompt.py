"""What a model is asked."""

from typing import Any

import pytest

from kernrl.errors import UsageError
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.prompt import PRECISIONS, read_template, render_prompt
from kernrl.tasks.task import Task

CODE = "import torch\n\nclass Model: ...  # a < b && {{ not_a_template }}\n"
TASK = Task(id="t", pytorch_code=CODE, precision="bf16", instruction="Mind the bias.")


def asked(**options: object) -> str:
    prompt: Any = render_prompt(TASK, **options)  # pyright: ignore[reportArgumentType]
    assert [message["role"] for message in prompt] == ["system", "user"]
    return "\n\n".join(message["content"] for message in prompt)


def test_it_states_the_contract_and_holds_the_code_untouched() -> None:
    prompt = asked(gpu="H200")
    assert f"```python\n{CODE.strip()}\n```" in prompt
    for words in (
        "`class ModelNew(nn.Module)`",
        "same names",
        "@triton.jit",
        ".item()",
        "```python",
        "NVIDIA H200",
        "Mind the bias.",
    ):
        assert words in prompt
    assert PRECISIONS["bf16"] in prompt


def test_precision_can_be_named_instead() -> None:
    assert PRECISIONS["tf32"] in asked(precision="tf32")
    assert "NVIDIA" not in asked()


def test_nano_adds_next_to_nothing() -> None:
    assert render_prompt(TASK, "nano") == f"### pytorch bf16\n{CODE.strip()}\n### triton\n"


def test_bad_input_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="no policy 'fp8'"):
        render_prompt(TASK, precision="fp8")
    with pytest.raises(UsageError, match="did you mean 'nano'"):
        render_prompt(TASK, "nana")  # pyright: ignore[reportArgumentType]


ASK = "Be quick.\n{{ task.pytorch_code }}\nin {{ precision_words }}"


def test_a_template_of_the_users_asks_in_place_of_ours(tmp_path):
    path = tmp_path / "ask.j2"
    path.write_text(ASK)
    task = load_tasks("heldout", limit=1).tasks[0]
    system, user = render_prompt(task, "chat", precision="bf16", template=read_template(path))
    assert system["role"] == "system"
    assert user["content"] == f"Be quick.\n{task.pytorch_code}\nin {PRECISIONS['bf16']}".strip()
    path.write_text('{% include "task.j2" %}\nBe quick.')
    assert render_prompt(task, "chat", template=read_template(path))[1]["content"].endswith("Be quick.")
    assert render_prompt(task, "nano", template=ASK) == render_prompt(task, "nano")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{% if %}{{ task.pytorch_code }}", "line 1: "),
        ("{{ task.pytorch_code }} {{ colour }}", "'colour' is undefined; it is given task, precision"),
        ("{{ task.pytorch_cod }}", "has no attribute 'pytorch_cod'"),
        ("write something fast", "leaves the task out: put {{ task.pytorch_code }} where"),
    ],
)
def test_a_template_that_cannot_ask_is_one_sentence(tmp_path, text, said):
    (tmp_path / "ask.j2").write_text(text)
    with pytest.raises(UsageError) as error:
        read_template(tmp_path / "ask.j2")
    assert said in str(error.value)
    assert str(error.value).startswith(f"--prompt-template {tmp_path}/ask.j2: ")


def test_a_template_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(UsageError, match="No such file or directory; name a file"):
        read_template(tmp_path / "none.j2")
