"""Defaults, then files, then flags; and one sentence for whatever is wrong."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

import pytest
from pydantic import Field, ValidationError

from kernrl import config
from kernrl.cli import run
from kernrl.config import VerifyConfig
from kernrl.errors import UsageError
from kernrl.settings import GROUP, Config, load_config, to_toml, written


class Inner(Config):
    gpu: str = "H200"
    blocks: int = Field(4, ge=1)


class Outer(Config):
    name: str = "nano"
    steps: int = Field(10, ge=1)
    rate: float = 1e-3
    mode: Literal["fast", "sure"] = "sure"
    tags: tuple[str, ...] = ()
    note: str | None = None
    out: Path = Path("runs")
    verifier: Inner = Inner()


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_flags_win_over_files_and_later_files_over_earlier(tmp_path: Path) -> None:
    first = write(tmp_path / "a.toml", 'name = "a"\nsteps = 1\n[verifier]\nblocks = 7\n')
    second = write(tmp_path / "b.toml", "steps = 2\nrate = 0.5\n")
    config = load_config(Outer, [first, second], {"rate": 0.25, "verifier.gpu": "H100"})
    assert (config.name, config.steps, config.rate) == ("a", 2, 0.25)
    assert config.verifier == Inner(gpu="H100", blocks=7)


def test_config_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Outer().steps = 3  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stpes = 3\n", ["bad.toml", "'stpes'", "did you mean 'steps'?"]),
        ("[verifier]\nblock = 3\n", ["bad.toml", "'verifier.block'", "did you mean 'blocks'?"]),
        ("[verifer]\nblocks = 3\n", ["'verifer.blocks'", "did you mean 'verifier'?"]),
        ("steps = 0\n", ["bad.toml: 'steps'", "greater than or equal to 1", "0"]),
        ("[verifier]\nblocks = 0\n", ["bad.toml: 'verifier.blocks'", "greater than or equal to 1"]),
        ('mode = "slow"\n', ["'mode'", "'fast' or 'sure'", "'slow'"]),
        ("tags = [1]\n", ["bad.toml: 'tags'", "a text"]),
        ("verifier = 3\n", ["bad.toml: 'verifier' should be a table, not 3"]),
        ('steps = "x"\n', ["bad.toml: 'steps' should be a whole number, not 'x'."]),
        ("rate = true\nsteps = 1.5\n", ["bad.toml: 'steps' should be a whole number, not 1.5."]),
        ('rate = "x"\n', ["bad.toml: 'rate' should be a number, not 'x'."]),
        ("[steps]\nblocks = 3\n", ["bad.toml: 'steps' is a setting and no table, so there is no 'steps.blocks'."]),
        ("rate = inf\n", ["bad.toml: 'rate'", "finite"]),
        ("rate = nan\n", ["bad.toml: 'rate'", "finite"]),
        ("steps = \n", ["bad.toml", "TOML"]),
    ],
)
def test_bad_file_is_one_sentence(tmp_path: Path, text: str, words: list[str]) -> None:
    file = write(tmp_path / "bad.toml", text)
    with pytest.raises(UsageError) as raised:
        load_config(Outer, [file])
    sentence = str(raised.value)
    assert "\n" not in sentence
    assert all(word in sentence for word in words), sentence


def test_bad_flag_is_named_as_it_was_written() -> None:
    with pytest.raises(UsageError, match=r"^--verifier\.blocks should be greater than or equal to 1, not 0\.$"):
        load_config(Outer, [], {"verifier.blocks": 0})


def test_missing_file_and_missing_setting(tmp_path: Path) -> None:
    class Needy(Config):
        out: Path

    with pytest.raises(UsageError, match=r"--config: there is no file .*none\.toml"):
        load_config(Needy, [tmp_path / "none.toml"])
    with pytest.raises(UsageError, match=r"^--out is missing"):
        load_config(Needy)


def test_toml_reads_back(tmp_path: Path) -> None:
    config = Outer(name='quote " and ünïcode 🙂\n', rate=1e-7, tags=("a", "b"), verifier=Inner(blocks=9))
    text = to_toml(config)
    assert tomllib.loads(text)["verifier"] == {"gpu": "H200", "blocks": 9}
    assert "# note is not set" in text
    assert "\n# " not in text.replace("\n# note", "")  # no headings where there are no groups
    assert load_config(Outer, [write(tmp_path / "c.toml", text)]) == config


def test_toml_reads_back_group_by_group(tmp_path: Path) -> None:
    class Grouped(Config):
        seed: int = Field(1, json_schema_extra={GROUP: "Run"})
        free: int = 2
        samples: int = Field(3, json_schema_extra={GROUP: "Sampling"})
        rounds: int = Field(4, json_schema_extra={GROUP: "Run"})

    config = Grouped(seed=9, samples=8)
    text = to_toml(config)
    assert text == "free = 2\n\n# Sampling\nsamples = 8\n\n# Run\nseed = 9\nrounds = 4\n"
    assert load_config(Grouped, [write(tmp_path / "c.toml", text)]) == config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("baseline = [3]\n", "'baseline' should be 'eager', 'compile' or 'max-autotune', not 3."),
        ("baseline = 3\n", "'baseline' should be a list, not 3."),
        ("out = 3\n", "'out' should be a path, not 3."),
        ("cache = 3\n", "'cache' should be true or false, not 3."),
    ],
)
def test_another_kind_of_value_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        load_config(VerifyConfig, [write(tmp_path / "bad.toml", text)])
    assert str(raised.value).endswith(said)


def test_one_baseline_needs_no_list(tmp_path: Path) -> None:
    assert load_config(VerifyConfig, [write(tmp_path / "a.toml", 'baseline = "compile"\n')]).baseline == ("compile",)


def test_a_number_that_is_none_is_said_to_be_one_and_not_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reinforce", "--model", "nano", "--output", "x", "--learning-rate", "nan", "--dry-run"]) == 2
    assert capsys.readouterr().err == "kernrl: --learning-rate should be a finite number, not nan.\n"


def numbers(config: type[Config], table: str = "") -> Iterator[str]:
    """Keys of the numbers of a config."""
    for name, field in config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Config):
            yield from numbers(field.annotation, f"{table}{name}.")
        if {int, float} & {field.annotation, *get_args(field.annotation)}:
            yield table + name


@pytest.mark.parametrize("name", [name for name in config.__all__ if name.endswith("Config")])
def test_a_number_with_too_many_digits_is_refused(name: str) -> None:
    """It would fill the memory, run for ever, or overflow a clock, a float32 or an integer of C."""
    command = getattr(config, name)
    given = {key: ["x"] if key == "runs" else "x" for key, field in command.model_fields.items() if field.is_required()}
    for key in numbers(command):
        with pytest.raises(
            UsageError, match=rf"^{re.escape(written(command, key))} should be less than (or equal to )?\d+, not 10+\.$"
        ):
            load_config(command, (), given | {key: "1" + "0" * 21})


def test_a_number_within_its_own_bound_may_be_larger_than_others(tmp_path: Path) -> None:
    given = {"out": tmp_path, "max_bytes": 2**40, "seed": 2**32 - 1}
    assert load_config(config.GenerateConfig, (), given).max_bytes == 2**40


def test_paths_below_the_home_folder_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    file = write(tmp_path / "a.toml", 'name = "~/models/a"\nout = "~/runs"\ntags = ["~/a", "~b", "c~/d"]\n')
    config = load_config(Outer, [file])
    assert (config.name, config.out, config.tags) == ("/home/me/models/a", Path("/home/me/runs"), ("/home/me/a", "~b", "c~/d"))
    assert load_config(Outer, [], {"out": Path("~/runs")}).out == Path("/home/me/runs")
