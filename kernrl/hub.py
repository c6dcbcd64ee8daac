"""What the hub says of a model or a dataset, found out in seconds: by themselves, its clients try for a minute without a
network."""

from __future__ import annotations

from typing import Literal

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from kernrl.errors import UsageError

TIMEOUT_S = 5.0

NO_ANSWER = "the hub cannot be reached"


def ask_hub(kind: Literal["model", "dataset"], name: str, revision: str | None) -> Literal["there", "unknown", "silent"]:
    """Whether the hub has it: `silent` where it cannot be reached, or is not to be asked.

    Raises:
        UsageError: it has no such revision.
    """
    if constants.HF_HUB_OFFLINE:
        return "silent"
    ask = HfApi().model_info if kind == "model" else HfApi().dataset_info
    try:
        ask(name, revision=revision, timeout=TIMEOUT_S)
    except GatedRepoError:
        return "there"  # the loader says what to accept
    except RevisionNotFoundError:
        raise UsageError(f"the hub's {kind} {name} has no branch, tag or commit {revision!r}.") from None
    except RepositoryNotFoundError:
        return "unknown"
    except Exception:  # of the network, of whatever library carries it: only that there is no answer counts
        return "silent"
    return "there"


def unknown(kind: str) -> str:
    """That the hub has none of the name."""
    return f"the hub has no such {kind} (or it is private: run `hf auth login`)"
