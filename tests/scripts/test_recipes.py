"""The recipes of `scripts/recipes` are settings of the command that each names in its first line."""

import shlex
from pathlib import Path

import pytest
from support import SCRIPTS

from kernrl.config import BestOfNConfig, ReinforceConfig, RewardWeightedConfig
from kernrl.settings import Config, load_config

RECIPES = SCRIPTS / "recipes"
COMMANDS: dict[str, type[Config]] = {
    "reinforce": ReinforceConfig,
    "best-of-n": BestOfNConfig,
    "reward-weighted": RewardWeightedConfig,
}


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_a_recipe_is_read_by_its_command(recipe: Path, tmp_path: Path) -> None:
    program, command, flag, named, *_ = shlex.split(recipe.read_text().splitlines()[0].removeprefix("# "))
    assert (program, flag, named) == ("kernrl", "--config", f"scripts/recipes/{recipe.name}")
    config = load_config(COMMANDS[command], [recipe], {"model": "nano", "output": tmp_path})
    assert config.model_dump()["reward"] == "log-speed"
    if config.model_dump().get("adam_epsilon", 0) < 1e-3:
        assert config.model_dump()["learning_rate"] <= 1e-4, "docs/training.md: higher rates undo nano"
