"""A reward that a user brings, by import path."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real

from kernrl.errors import RunError
from kernrl.rollouts.reward import UNKNOWN, Reward
from kernrl.user_code import load_function
from kernrl.verifier.base.verdict import Verdict


def own_reward(path: str) -> Callable[[Verdict], Reward | None]:
    """The function at `package.module:name` as a reward. It is given verdicts that could be judged, and no others.

    Raises:
        UsageError: it cannot be imported. The reward itself raises RunError where the function raises or returns no finite
            number.
    """
    function = load_function(path, "--reward")

    def worth(verdict: Verdict) -> Reward | None:
        if verdict.status in UNKNOWN:
            return None
        try:
            value = function(verdict)
        except Exception as error:  # the user's own code
            what = f"{type(error).__name__}: {error}"
            raise RunError(f"--reward {path} raised {what}, on a verdict of status '{verdict.status}'.") from error
        if not isinstance(value, Real) or not math.isfinite(value):
            raise RunError(
                f"--reward {path} returned {value!r} for a verdict of status '{verdict.status}', which is no number."
            )
        return Reward(float(value), {"own": float(value)})

    return worth
