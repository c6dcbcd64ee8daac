"""Where the nano that kernrl ships is. Loads nothing, so that a command can ask before it loads torch and transformers."""

from __future__ import annotations

from pathlib import Path

from kernrl.errors import UsageError

NANO = "nano"
"""Its name as a value of `--model`."""


def trained_nano() -> Path:
    """Folder of the trained nano: `checkpoints/nano`, in the working directory or in the checkout of this package.

    Raises:
        UsageError: it is in neither; a wheel does not contain it.
    """
    places = [root / "checkpoints" / NANO for root in (Path(), Path(__file__).parents[2])]
    for folder in places:
        if (folder / "config.json").exists():
            return folder
    raise UsageError(
        f"--model nano: there is no trained nano in {' or '.join(map(str, places))}; make one with 'kernrl sft --output "
        "checkpoints/sft' and give its folder checkpoints/sft/model, or copy checkpoints/nano from kernrl's repository."
    )
