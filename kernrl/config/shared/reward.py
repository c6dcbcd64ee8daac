"""What `--reward` may be."""

from __future__ import annotations

from kernrl.user_code import is_import_path

REWARDS = ("hierarchical", "best-of-n", "milestones", "log-speed", "best-known")
"""Rewards that come with kernrl."""

COMPARE: dict[str, tuple[str, ...]] = {"milestones": ("eager", "compile"), "best-known": ("eager", "compile")}
"""Reward → the baselines that it compares with, whatever `--reward-baseline` says."""


def preset_or_path(value: str) -> str:
    """The value, if it is one of `REWARDS` or an import path. Raises ValueError."""
    if value not in REWARDS and not is_import_path(value):
        raise ValueError(f"should be {', '.join(REWARDS)} or an import path such as my_package.rewards:fn")
    return value
