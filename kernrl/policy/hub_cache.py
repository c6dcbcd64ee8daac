"""Whether a model of the hub can be had, from there or from what was downloaded."""

from __future__ import annotations

from functools import cache

from huggingface_hub import try_to_load_from_cache

from kernrl.errors import UsageError
from kernrl.hub import NO_ANSWER, ask_hub, unknown


@cache
def from_cache_alone(model: str, revision: str | None = None) -> bool:
    """Whether to load a hub model from what was downloaded before, as the hub cannot be reached.

    Raises:
        UsageError: the hub has no such model, or cannot be reached and nothing was downloaded.
    """
    said = ask_hub("model", model, revision)
    if said == "there":
        return False
    if isinstance(try_to_load_from_cache(model, "config.json", revision=revision), str):
        return True
    raise UsageError(f"--model {model}: there is no such folder, and {unknown('model') if said == 'unknown' else NO_ANSWER}.")
