"""Upload a run's final model to the hub."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

from kernrl.errors import RunError, UsageError


def check_upload(repo_id: str | None) -> None:
    """See that an upload can work before hours go into the model: make the repository, private if it is new.

    Raises:
        UsageError: nobody is logged in, the name is none, or the repository is somebody else's.
    """
    if not repo_id:
        return
    try:
        HfApi().create_repo(repo_id, private=True, exist_ok=True)
    except LocalTokenNotFoundError:
        raise UsageError(f"--push-to-hub {repo_id}: nobody is logged in; run 'hf auth login' or set HF_TOKEN.") from None
    except HFValidationError as error:
        raise UsageError(f"--push-to-hub {repo_id}: {error}") from None
    except (HfHubHTTPError, OSError) as error:
        raise UsageError(f"--push-to-hub {repo_id}: the hub does not let it be written ({_first_line(error)}).") from None
    except Exception as error:  # of the network, of whatever library carries it
        raise UsageError(f"--push-to-hub {repo_id}: the hub cannot be reached ({_first_line(error)}).") from None


def upload(folder: Path, repo_id: str) -> str:
    """Upload a model's folder with its card; returns its address.

    Raises:
        RunError: the upload failed. The folder is still there.
    """
    try:
        HfApi().upload_folder(repo_id=repo_id, folder_path=folder, ignore_patterns=["COMPLETE", "trainer_state.json"])
    except Exception as error:  # of the hub, or of whatever library carries it: the model is there all the same
        raise RunError(f"{folder} is written, but not uploaded to {repo_id} ({_first_line(error)}).") from error
    return f"https://huggingface.co/{repo_id}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
