"""Whether a model of the hub can be had, found out in seconds: transformers by itself tries for a minute without a network."""

from __future__ import annotations

from functools import cache

from huggingface_hub import HfApi, constants, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from kernrl.errors import UsageError

TIMEOUT_S = 5.0


@cache
def from_cache_alone(model: str, revision: str | None = None) -> bool:
    """Whether to load a hub model from what was downloaded before, as the hub cannot be reached.

    Raises:
        UsageError: the hub has no such model, or cannot be reached and nothing was downloaded.
    """
    there = isinstance(try_to_load_from_cache(model, "config.json", revision=revision), str)
    if constants.HF_HUB_OFFLINE:
        reached = False
    else:
        try:
            HfApi().model_info(model, revision=revision, timeout=TIMEOUT_S)
            return False
        except GatedRepoError:
            return False  # the loader says what to accept
        except RevisionNotFoundError:
            raise UsageError(f"--revision {revision}: the hub's {model} has no such branch, tag or commit.") from None
        except RepositoryNotFoundError:
            reached = True
        except Exception:  # of the network, of whatever library carries it: only that there is no answer counts
            reached = False
    if there:
        return True
    why = "the hub has no such model (or it is private: run `hf auth login`)" if reached else "the hub cannot be reached"
    raise UsageError(f"--model {model}: there is no such folder, and {why}.")
