"""What a run says while it goes on: the line of progress, in a terminal, in a pipe and in a file."""

from support.tiny import tiny_policy

from kernrl.rollouts.engines.engine import Sampling
from kernrl.rollouts.engines.generate_engine import GenerateEngine
from kernrl.runs.activity import Activity, SamplingWatch


def test_a_run_says_what_it_does_in_a_log_file_and_where_there_is_no_terminal(tmp_path, capsys):
    watch = SamplingWatch()
    with Activity(tmp_path, every_s=0.01) as activity:
        activity.phase("loading a model")
        watch.begin_steps(1, 5)
        watch.expect(96)
        for _ in range(34):
            watch.sampled(10)
        for _ in range(20):
            watch.judged()
        activity.follow(watch.line)
        while "replies" not in (tmp_path / "log.txt").read_text():
            pass
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert lines[0].endswith("loading a model")
    counts = next(line for line in lines if "replies" in line)
    assert "step 2 of 5: 34 of 96 replies, 340 tokens, " in counts
    assert "20 verdicts, about " in counts
    assert "34 of 96 replies" in capsys.readouterr().err


def test_a_line_that_stays_the_same_is_said_all_the_same(tmp_path):
    with Activity(tmp_path, every_s=0.01) as activity:
        activity.follow(lambda: "0 of 640 replies")
        while not (tmp_path / "log.txt").exists() or "replies; the same for 0 s\n" not in (tmp_path / "log.txt").read_text():
            pass


def test_what_cannot_be_counted_says_for_how_long_it_has_been_going_on(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("kernrl.runs.activity.time.monotonic", lambda: now[0])
    activity = Activity()
    activity.phase("preparing pairs")
    assert activity.line() == "preparing pairs"
    now[0] = 165.0
    assert activity.line() == "preparing pairs: 65 s"


def test_the_line_says_when_the_weights_are_updated():
    watch = SamplingWatch()
    watch.begin_steps(0, 2)
    watch.expect(1)
    watch.sampled(10)
    assert "updating" not in watch.line()
    watch.judged()
    assert watch.line() == "step 1 of 2: 1 of 1 reply, 10 tokens, 1 verdict, updating the weights"
    watch.expect(1)
    assert "updating" not in watch.line()


def test_the_line_before_the_first_step_and_after_the_last():
    watch = SamplingWatch()
    assert watch.line() == "preparing prompts"
    watch.begin_steps(0, 2)
    assert watch.line() == "step 1 of 2: preparing prompts"
    watch.steps_done = 2
    assert watch.line() == "writing the model"


def test_where_time_ends_a_run_the_line_counts_time_and_not_steps(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("kernrl.runs.activity.time.perf_counter", lambda: now[0])
    watch = SamplingWatch()
    watch.begin_steps(0, 1000, limit_s=60)
    watch.expect(4)
    assert watch.line().startswith("step 1, after 0 s of 60 s: 0 of 4 replies")
    now[0], watch.steps_done = 40.0, 1
    assert watch.line().startswith("step 2, after 40 s of 60 s: ")
    assert watch.line().endswith("about 20 s to go")


def test_tokens_are_counted_while_they_are_decoded():
    policy = tiny_policy()
    engine, seen = GenerateEngine(policy), []
    engine.on_tokens = seen.append
    prompt: list[int] = policy.tokenizer("ab", add_special_tokens=False)["input_ids"]  # pyright: ignore[reportAssignmentType]
    rollouts = list(engine.generate([prompt], Sampling(2, 16, 1.0)))
    assert sum(seen) == sum(len(r.token_ids) for r in rollouts) == 32
    watch = SamplingWatch()
    watch.expect(2)
    watch.decoded(16)
    watch.sampled(8)
    assert "16 tokens" in watch.line()  # and not 24
