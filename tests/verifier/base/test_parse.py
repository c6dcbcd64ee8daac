"""Which part of a reply is the code."""

import hashlib
import textwrap

import pytest

from kernrl.verifier.base.parse import MAX_SOURCE_CHARS, Candidate, parse_reply
from kernrl.verifier.base.verdict import Rejection, Status

MODEL = "class ModelNew:\n    pass\n"


def source(text: str) -> str:
    candidate = parse_reply(text)
    assert isinstance(candidate, Candidate)
    return candidate.source


@pytest.mark.parametrize(
    "reply",
    [
        f"```python\n{MODEL}```",
        f"Here it is:\n\n```python\n{MODEL}```\nDone.",
        f"```\n{MODEL}```",
        f"```py\nimport torch\n```\n```python\n{MODEL}```\n```python\nmodel = ModelNew()\n```",
        f"```python\nclass ModelNew: 1\n```\nBetter:\n```python\n{MODEL}```",
        f"```bash\npip install x\n```\n```python\n{MODEL}```",
        f"~~~python\n{MODEL}~~~",
        f"```python\n{MODEL}",
    ],
    ids=["fenced", "prose", "no language", "last that defines", "second thought", "other language", "tildes", "cut off"],
)
def test_the_last_block_that_defines_the_model_is_the_candidate(reply):
    assert source(reply).strip() == MODEL.strip()


EXAMPLE = r"""class ModelNew:
    '''Doubles:

    ```python
    class ModelNew: ...
    ```
    and, bare,

```
y = model(x)
```
    \''' it's "" \" all
    '''  # don't close here
    text = "# '''"
"""


@pytest.mark.parametrize(
    "reply",
    [
        EXAMPLE,
        f"It's done:\n```python\n{EXAMPLE}```\nwith ''' quotes.\n```\nnot code\n```",
        f"```python\nclass ModelNew: 1\n```\n```python\n{EXAMPLE}",
    ],
    ids=["bare", "fenced", "cut off"],
)
def test_fences_inside_strings_are_code(reply):
    assert source(reply) == EXAMPLE


@pytest.mark.parametrize("indent", ["  ", "   ", "\t", "    "])
@pytest.mark.parametrize("around", ["1. Here:\n\n{}\n2. Done.", "- Here:\n{}", "{}\nIt's done.", "> no\n\n{}\n```text\nx\n```"])
def test_a_block_in_a_list_is_code_without_its_indentation(indent: str, around: str) -> None:
    body = "# made for you\nimport torch\n\n\nclass ModelNew:\n    x = 1\n\n    def forward(self):\n        return 1\n"
    block = textwrap.indent(f"```python\n{body}```\n", indent).replace("\n\n\n", "\n" + indent + "\n\n")
    assert source(around.format(block)).replace(f"{indent}\n", "\n") == body
    assert source(f"{indent}```python\n{body}{indent}```") == body, "the fence alone is indented"
    assert source(f"```python\n{indent}# made\n{body}```") == f"{indent}# made\n{body}", "a comment may be"


def test_a_string_in_an_indented_block_may_have_less_indentation() -> None:
    reply = '  ```python\n  class ModelNew:\n      """a\n b\n  ```\n  c"""\n  ```\n'
    assert source(reply) == 'class ModelNew:\n    """a\nb\n```\nc"""\n'


def test_a_string_that_is_never_closed_hides_no_other_block():
    assert source(f'```python\nclass ModelNew:\n    """cut\n```\nAgain:\n```python\n{MODEL}```\n') == MODEL


def test_without_a_definition_the_last_block_is_taken():
    assert source("```python\nimport torch\n```\nand\n```python\nimport triton\n```") == "import triton\n"


def test_a_mark_of_byte_order_is_no_code():
    assert source("\ufeff" + MODEL) == MODEL


def test_bare_code_is_taken_whole():
    assert source(MODEL) == MODEL
    assert source("import torch\nx = 1\n") == "import torch\nx = 1\n"
    assert "class ModelNew" in source("import torch\nclass ModelNew(:\n")


@pytest.mark.parametrize("reply", ["", "I cannot do that.", "x = 1", "```text\nhello\n```", "\x00", "("])
def test_prose_is_no_code(reply):
    rejection = parse_reply(reply)
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.NO_CODE


def test_a_book_is_no_candidate():
    rejection = parse_reply("```python\n" + "#" * MAX_SOURCE_CHARS + "\n```")
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.NO_CODE


def test_the_sha_is_of_the_source():
    assert Candidate("é").sha == hashlib.sha256("é".encode()).hexdigest()
    assert len(Candidate("\ud800").sha) == 64


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        (" " * 100_000 + "```") * 2,
        "```python\nx" + "\n" * 190_000 + "x\n```",
        "`" * 100_000 + "x`",
        "```\n" * 50_000,
        "class ModelNew:\n```\n" + "'''\n```\n" * 25_000,
        "class ModelNew:\n```\n" + '""" \\' * 40_000 + "\n```" * 9_000,
    ],
)
def test_no_reply_is_read_in_the_square_of_its_length(text):
    """Each of these once took minutes: the test would not fail, but never end."""
    assert parse_reply(text) is not None
