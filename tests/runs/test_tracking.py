"""Trackers: numbers under dotted names, in the run's folder, and one sentence where one is not installed."""

import pytest
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker

from kernrl.cli import run
from kernrl.config import SftConfig
from kernrl.errors import UsageError
from kernrl.runs import tracking


class Notes(GeneralTracker):
    """A tracker that only remembers."""

    name = "notes"
    requires_logging_directory = False
    tracker = None

    def __init__(self):
        super().__init__()
        self.config, self.lines = {}, []

    def store_init_configuration(self, values):
        self.config = values

    def log(self, values, step, **kwargs):
        self.lines.append((step, values))


def test_numbers_go_to_the_tracker_at_their_step(tmp_path):
    notes = Notes()
    accelerator = Accelerator(cpu=True, log_with=notes, project_dir=tmp_path)
    tracking.start_tracker(accelerator, SftConfig(output=tmp_path, model="some/model"))
    tracking.track(accelerator, {"step": 3, "loss": 0.5, "seconds": {"update": 2}, "note": "words"}, 3)
    assert notes.lines == [(3, {"loss": 0.5, "seconds.update": 2})]
    assert notes.config["model"] == "some/model"
    assert notes.config["verifier.cache"] == "True"


def test_what_wandb_writes_stays_in_the_folder_of_the_run(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(Accelerator, "init_trackers", lambda self, *args, **kwargs: asked.append(kwargs["init_kwargs"]))
    accelerator = Accelerator(cpu=True, log_with=Notes(), project_dir=tmp_path)
    tracking.start_tracker(accelerator, SftConfig(output=tmp_path))
    assert asked[0]["wandb"]["dir"] == str(tmp_path)
    tracking.start_tracker(accelerator, SftConfig(output=tmp_path))  # a resume is the same run
    assert asked[0] == asked[1]
    assert asked[0]["wandb"]["resume"] == "allow"


def test_project_and_name_are_the_runs_own(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        Accelerator, "init_trackers", lambda self, *args, **kwargs: asked.append((args[0], kwargs["init_kwargs"]))
    )
    accelerator = Accelerator(cpu=True, log_with=Notes(), project_dir=tmp_path / "run-3")
    tracking.start_tracker(accelerator, SftConfig(output=tmp_path))
    tracking.start_tracker(accelerator, SftConfig(output=tmp_path, project="fusion", run_name="first"))
    assert [(project, init["wandb"]["name"], init["trackio"]["name"]) for project, init in asked] == [
        ("kernrl", "run-3", "run-3"),
        ("fusion", "first", "first"),
    ]


def test_a_tracker_that_does_not_start_is_one_sentence(tmp_path, monkeypatch):
    """As wandb does not, where nobody has logged in."""

    def refuse(*_, **__):
        raise RuntimeError("No API key configured. Use `wandb login` to log in.\nMore words.")

    monkeypatch.setattr(Accelerator, "init_trackers", refuse)
    accelerator = Accelerator(cpu=True, log_with=Notes(), project_dir=tmp_path)
    with pytest.raises(UsageError) as refused:
        tracking.start_tracker(accelerator, SftConfig(output=tmp_path, report_to="wandb"))
    assert str(refused.value) == "--report-to wandb does not start: No API key configured. Use `wandb login` to log in."


@pytest.mark.parametrize("tracker", ["tensorboard", "trackio", "wandb"])
def test_a_tracker_that_is_missing_is_named_with_its_remedy(tmp_path, monkeypatch, capsys, tracker):
    monkeypatch.setattr("kernrl.config.shared.tracking.find_spec", lambda name: None)
    monkeypatch.setattr("kernrl.cli.loading_torch", lambda: pytest.fail("it is refused before"))
    assert run(["sft", "--output", str(tmp_path / "run"), "--report-to", tracker]) == 2
    assert f"--report-to {tracker} needs {tracker}: pip install 'kernrl[{tracker}]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_tensorboard_has_the_losses_of_a_run(tmp_path):
    """Where it is installed."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accelerator = tracking.open_accelerator("tensorboard", tmp_path)
    tracking.start_tracker(accelerator, SftConfig(output=tmp_path))
    tracking.track(accelerator, {"step": 1, "loss": 0.25}, 1)
    accelerator.end_training()
    events = EventAccumulator(str(tmp_path / "kernrl"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 0.25)]
