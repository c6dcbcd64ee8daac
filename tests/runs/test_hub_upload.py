"""Uploading a final model, against a hub that only remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import LocalTokenNotFoundError

from kernrl.errors import RunError, UsageError
from kernrl.runs import hub_upload


class Hub:
    """What was asked of the hub, and what it raises."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.error: Exception | None = None

    def __call__(self) -> Hub:
        return self

    def create_repo(self, repo_id: str, **settings: Any) -> None:
        self._take(repo_id, settings)

    def upload_folder(self, **settings: Any) -> None:
        self._take(settings.pop("repo_id"), settings)

    def _take(self, repo_id: str, settings: dict[str, Any]) -> None:
        if self.error:
            raise self.error
        self.asked.append((repo_id, settings))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub()
    monkeypatch.setattr(hub_upload, "HfApi", found)
    return found


def test_the_repository_is_made_before_training_and_is_private(fake: Hub) -> None:
    hub_upload.check_upload("me/model")
    assert fake.asked == [("me/model", {"private": True, "exist_ok": True})]


def test_without_the_flag_nothing_is_asked(fake: Hub) -> None:
    hub_upload.check_upload(None)
    assert not fake.asked


def test_the_folder_is_uploaded_without_what_only_a_run_needs(fake: Hub, tmp_path: Path) -> None:
    assert hub_upload.upload(tmp_path, "me/model") == "https://huggingface.co/me/model"
    assert fake.asked == [("me/model", {"folder_path": tmp_path, "ignore_patterns": ["COMPLETE", "trainer_state.json"]})]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (LocalTokenNotFoundError("no token"), "nobody is logged in; run 'hf auth login' or set HF_TOKEN"),
        (OSError("no route"), r"the hub does not let it be written \(no route\)"),
    ],
)
def test_what_cannot_be_written_is_refused_at_once(fake: Hub, error: Exception, said: str) -> None:
    fake.error = error
    with pytest.raises(UsageError, match=f"--push-to-hub me/model: {said}"):
        hub_upload.check_upload("me/model")


def test_a_failed_upload_says_where_the_model_is(fake: Hub, tmp_path: Path) -> None:
    fake.error = OSError("gone")
    with pytest.raises(RunError, match=r"is written, but not uploaded to me/model \(gone\)"):
        hub_upload.upload(tmp_path, "me/model")


class NoAnswer(Exception):
    """Of a network library: no OSError, as httpx's errors are none."""


def test_a_hub_that_cannot_be_reached_is_one_sentence(fake: Hub, tmp_path: Path) -> None:
    fake.error = NoAnswer("Name or service not known\nmore")
    with pytest.raises(UsageError, match=r"^--push-to-hub me/m: the hub cannot be reached \(Name or service not known\)\.$"):
        hub_upload.check_upload("me/m")
    with pytest.raises(RunError, match="is written, but not uploaded to me/m"):
        hub_upload.upload(tmp_path, "me/m")
