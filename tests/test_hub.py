"""Without a network: what is not here is refused at once, and what was downloaded is used."""

import datasets
import pytest

from kernrl import hub
from kernrl.cli import run
from kernrl.policy import load
from kernrl.policy.hub_cache import from_cache_alone
from kernrl.tasks.loaders import load_tasks


@pytest.fixture
def no_network(monkeypatch):
    asked = []

    def unreachable(self, name, **settings):
        asked.append(settings["timeout"])
        raise OSError("no route to host")

    from_cache_alone.cache_clear()
    monkeypatch.setattr(hub.HfApi, "model_info", unreachable)
    monkeypatch.setattr(hub.HfApi, "dataset_info", unreachable)
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    yield asked
    from_cache_alone.cache_clear()


def test_a_hub_model_without_a_network_is_refused_at_once(no_network, tmp_path, capsys):
    assert run(["eval", "--model", "nobody/nothing", "--output", str(tmp_path / "run")]) == 2
    assert "--model nobody/nothing: there is no such folder, and the hub cannot be reached." in capsys.readouterr().err
    assert no_network == [hub.TIMEOUT_S]  # asked once, with a limit
    assert not (tmp_path / "run").exists()


def test_what_was_downloaded_is_used_without_a_network(no_network, monkeypatch):
    monkeypatch.setattr("kernrl.policy.hub_cache.try_to_load_from_cache", lambda *args, **kwargs: "/somewhere/config.json")
    assert load.find_source("some/model") == "some/model"
    assert from_cache_alone("some/model")


def test_a_hub_dataset_without_a_network_is_refused_at_once(no_network, capsys):
    assert run(["tasks", "list", "nobody/nothing"]) == 2
    assert "nobody/nothing: there is no such file here, and the hub cannot be reached." in capsys.readouterr().err
    assert no_network == [hub.TIMEOUT_S]
    assert not datasets.config.HF_HUB_OFFLINE


def test_a_dataset_that_was_downloaded_is_read_without_a_network(no_network, monkeypatch):
    offline = []

    def from_disk(name, revision):
        offline.append(datasets.config.HF_HUB_OFFLINE)
        code = "class Model: ...\nN = 4\ndef get_inputs(): return []\ndef get_init_inputs(): return []\n"
        return datasets.Dataset.from_dict({"pytorch_code": [code], "id": ["a"]})

    monkeypatch.setattr(datasets, "load_dataset", from_disk)
    assert [task.id for task in load_tasks("nobody/nothing").tasks] == ["a"]
    assert offline == [True]
