"""The policy: nano, packing, packed attention, checkpoints, loading."""

import itertools
import json
import math
import os
import resource
import signal
import subprocess
import sys
import warnings
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.tiny import tiny_policy
from transformers import BertConfig

from kernrl.errors import RunError, UsageError
from kernrl.policy import attention
from kernrl.policy.attention import VARLEN, packed_kwargs
from kernrl.policy.checkpoint import COMPLETE, commit_checkpoint, latest_checkpoint, prune_checkpoints
from kernrl.policy.examples import Example, prompt_text, tokenize_pairs
from kernrl.policy.finetune import Finetuner, FinetuneSettings
from kernrl.policy.load import load_policy, recompute_activations
from kernrl.policy.memory_plan import MemoryEstimate, estimate_training, require_memory
from kernrl.policy.nano import END, create_nano, train_tokenizer
from kernrl.policy.packing import PackedDataset
from kernrl.policy.pairs import Pair

TEXT = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x + 1024  # π ≠ 3\n"


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([TEXT] * 3)


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.set_num_threads(1)
    model = create_nano(tokenizer, seed=0)
    model.set_attn_implementation(VARLEN)
    return model.eval()


def test_tokenizer_is_lossless_and_copies_digits(tokenizer):
    strange = TEXT + "\t\r\n  naïve 汉字 \x00 12345\n"
    assert tokenizer.decode(tokenizer(strange).input_ids) == strange
    assert len(tokenizer("12345").input_ids) == 5


@pytest.mark.slow
def test_nano_is_small_and_deterministic(model, tokenizer):
    assert sum(p.numel() for p in model.parameters()) <= 18_000_000
    again = create_nano(tokenizer, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.slow
def test_saved_nano_loads_with_plain_transformers(model, tokenizer, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    plain, plain_tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "hi"}]
    ids = plain_tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert torch.allclose(plain(**ids).logits, model(**ids).logits, atol=1e-5)
    assert plain_tokenizer.eos_token == END
    assert len(plain_tokenizer) == len(tokenizer)
    assert plain_tokenizer(TEXT).input_ids == tokenizer(TEXT).input_ids
    assert plain.generation_config.eos_token_id == plain_tokenizer.eos_token_id
    assert load_policy(str(tmp_path)).head_weight.shape == (384, 512)


EXAMPLES = [Example([5, 6, 7], [8, 9, 3]), Example([15, 16], [8, 19, 29, 3], weight=0.5), Example([5], [1, 3])]


def test_packed_documents_cannot_see_each_other(model):
    dataset = PackedDataset(EXAMPLES, row_tokens=16, pad_id=0, seed=1)
    row = next(dataset.rows())

    def hidden(input_ids):
        extra = packed_kwargs(row.position_ids, row.cu_seqlens, dataset.max_seqlen)
        return model.model(input_ids=input_ids, **extra).last_hidden_state[0]

    packed = hidden(row.input_ids)
    bounds = row.cu_seqlens.unique().tolist()
    for a, b in itertools.pairwise(bounds):
        alone = model.model(input_ids=row.input_ids[:, a:b]).last_hidden_state[0]
        assert torch.allclose(packed[a:b], alone, atol=1e-5)
    # every other document changed: not one bit of this one moves
    a, b = bounds[1], bounds[2]
    others = (row.input_ids + 1) % 300
    others[:, a:b] = row.input_ids[:, a:b]
    assert torch.equal(hidden(others)[a:b], packed[a:b])
    # and the test can fail: without the boundaries the first token of the second document sees the first
    plain = model.model(input_ids=row.input_ids).last_hidden_state[0]
    assert not torch.allclose(plain[a:b], packed[a:b], atol=1e-2)


def test_packed_attention_runs_in_the_precision_of_autocast(model, monkeypatch):
    seen = []
    real = attention.attention_by_document

    def spy(query, key, value, *rest):
        seen.extend([query.dtype, key.dtype, value.dtype])
        return real(query, key, value, *rest)

    monkeypatch.setattr(attention, "attention_by_document", spy)
    row = next(PackedDataset(EXAMPLES, row_tokens=16, pad_id=0, seed=1).rows())
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        model.model(input_ids=row.input_ids, **packed_kwargs(row.position_ids, row.cu_seqlens, 16))
    assert set(seen) == {torch.bfloat16}


def test_targets_are_the_completions_shifted_by_one():
    dataset = PackedDataset(EXAMPLES, row_tokens=16, pad_id=0, seed=None)
    row = dataset.pack([0, 1])
    assert row.input_ids[0].tolist() == [5, 6, 7, 8, 9, 3, 15, 16, 8, 19, 29, 3, 0, 0, 0, 0]
    assert row.targets.tolist() == [-100, -100, 8, 9, 3, -100, -100, 8, 19, 29, 3, -100, -100, -100, -100, -100]
    assert row.weights.tolist() == [0, 0, 1, 1, 1, 0, 0, 0.5, 0.5, 0.5, 0.5, 0, 0, 0, 0, 0]
    assert row.position_ids[0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert row.cu_seqlens.tolist() == [0, 6, 12, 16, 16, 16, 16, 16]
    assert row.num_targets == 7


def test_every_epoch_holds_every_example_once_and_any_row_can_be_reached():
    examples = [Example([1] * (1 + i % 7), [2] * (1 + i % 5)) for i in range(100)]
    dataset = PackedDataset(examples, row_tokens=20, pad_id=0, seed=3)
    for epoch in (0, 1):
        assert sorted(i for row in dataset.epoch_rows(epoch) for i in row) == list(range(100))
    assert dataset.epoch_rows(0) != dataset.epoch_rows(1)
    rows = dataset.rows()
    first = [next(rows).input_ids for _ in range(2 * dataset.rows_per_epoch + 5)]
    fresh = PackedDataset(examples, row_tokens=20, pad_id=0, seed=3)
    late = fresh.rows(start_row=dataset.rows_per_epoch + 3)
    assert all(torch.equal(next(late).input_ids, ids) for ids in first[dataset.rows_per_epoch + 3 :])
    lengths = {len(next(rows).cu_seqlens) for _ in range(50)}
    assert len(lengths) == 1


def test_a_row_has_room_for_the_documents_it_holds_not_for_all_that_might():
    """Attention pays for every place in `cu_seqlens`. One pair in a hundred is of two tokens, and 3,000 of those would fit."""
    random = np.random.default_rng(0)
    lengths = [2 if n % 100 == 0 else int(random.integers(40, 200)) for n in range(2_000)]
    dataset = PackedDataset([Example([1] * (n // 2), [2] * (n - n // 2)) for n in lengths], row_tokens=6_000, pad_id=0, seed=0)
    held = [len(members) for members in dataset.epoch_rows(0)]
    assert max(held) < dataset.documents < 1.6 * max(held)
    assert sum(6_000 - sum(lengths[m] for m in members) for members in dataset.epoch_rows(0)[:-1]) < 100 * len(held)


def test_rows_of_many_short_documents_and_of_none_keep_within_their_room():
    lengths = [2] * 300 + [60] * 60  # in this order rows are not what shuffled ones would be
    examples = [Example([1] * (n // 2), [2] * (n // 2)) for n in lengths]
    dataset = PackedDataset(examples, row_tokens=240, pad_id=0, seed=None)
    rows = dataset.epoch_rows(0)
    assert sorted(m for members in rows for m in members) == list(range(360))
    for members in [*rows, []]:
        ends = dataset.pack(members).cu_seqlens
        documents = ends.diff()[ends.diff() > 0]
        assert len(ends) == dataset.documents + 1
        assert (int(ends[0]), int(ends[-1]), int(documents.max()) <= dataset.max_seqlen) == (0, 240, True)
        assert documents[: len(members)].tolist() == [lengths[m] for m in members]


def test_long_pairs_are_counted_never_cut(tokenizer):
    pairs = [Pair([{"role": "user", "content": "x"}], "y" * n) for n in (5, 500)]
    result = tokenize_pairs(pairs, tokenizer, max_length=100)
    assert (len(result.examples), result.too_long) == (1, 1)
    example = result.examples[0]
    assert tokenizer.decode(example.prompt_ids) == prompt_text(pairs[0].messages, tokenizer)
    assert tokenizer.decode(example.completion_ids) == "yyyyy" + END


KILLED_WRITER = """
import sys, time
from pathlib import Path
from kernrl.policy.checkpoint import commit_checkpoint
def write(folder):
    (folder / "weights").write_bytes(b"x" * 100)
    print("half", flush=True)
    time.sleep(60)
commit_checkpoint(Path(sys.argv[1]), "step_2", write)
"""


def test_a_kill_in_the_middle_of_a_write_leaves_the_last_whole_checkpoint(tmp_path):
    commit_checkpoint(tmp_path, "step_1", lambda d: (d / "weights").write_text("one"))
    child = subprocess.Popen([sys.executable, "-c", KILLED_WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"half\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert latest_checkpoint(tmp_path) == tmp_path / "step_1"
    commit_checkpoint(tmp_path, "step_2", lambda d: (d / "weights").write_text("two"))
    assert latest_checkpoint(tmp_path) == tmp_path / "step_2"
    assert (tmp_path / "step_2" / "weights").read_text() == "two"


def test_who_may_read_the_folder_may_read_its_files(tmp_path):
    def write(folder):
        (folder / "weights").touch(mode=0o600)

    final = commit_checkpoint(tmp_path, "step_1", write)
    assert (final / "weights").stat().st_mode & 0o777 == final.stat().st_mode & 0o666


def test_a_failed_write_leaves_nothing(tmp_path):
    def fail(folder):
        (folder / "weights").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        commit_checkpoint(tmp_path, "step_1", fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("save", "numel"), [(torch.save, 2_000_000), (torch.save, 1_249_800), (save_file, 2_000_000)])
def test_a_full_disk_is_named_in_whatever_words(tmp_path, save, numel):
    """A limit on the size of a file stands for the disk, and is met in the weights or at their very end."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 * 1_249_800 + 500, before[1]))
    try:
        with pytest.raises((RunError, OSError), match=r"step_1 could not be written .*make room|File too large"):
            commit_checkpoint(tmp_path, "step_1", lambda folder: save({"x": torch.zeros(numel)}, folder / "weights"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_pruning_keeps_the_newest_and_ignores_unfinished_ones(tmp_path):
    for n in (1, 2, 10):
        commit_checkpoint(tmp_path, f"step_{n}", lambda d: None)
    (tmp_path / "step_11").mkdir()
    assert latest_checkpoint(tmp_path) == tmp_path / "step_10"
    (tmp_path / "step_11" / COMPLETE).touch()
    prune_checkpoints(tmp_path, keep=2)
    assert sorted(d.name for d in tmp_path.iterdir()) == ["step_10", "step_11"]


def test_bad_models_are_refused_in_one_sentence(model, tokenizer, tmp_path, capfd):
    with pytest.raises(UsageError, match="no such folder"):
        load_policy("./nowhere")
    good = tmp_path / "good"
    model.save_pretrained(good)
    tokenizer.save_pretrained(good)

    encoder = tmp_path / "encoder"
    tokenizer.save_pretrained(encoder)
    (encoder / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(UsageError, match="not a causal language model"):
        load_policy(str(encoder))

    mute = train_tokenizer([TEXT])
    mute.chat_template = None
    mute.save_pretrained(tmp_path / "mute")
    with pytest.raises(UsageError, match="chat template"):
        load_policy(str(tmp_path / "mute"))

    mute.chat_template, mute.eos_token = "{{ messages }}", None
    mute.save_pretrained(tmp_path / "endless")
    with pytest.raises(UsageError, match="no end token"):
        load_policy(str(tmp_path / "endless"))

    wrong = json.loads((good / "config.json").read_text())
    (good / "config.json").write_text(json.dumps({**wrong, "hidden_size": 256}))
    with pytest.raises(UsageError, match=r"do not fit its config.json: \d+ are of another shape, such as .* and not \["):
        load_policy(str(good))
    assert "MISMATCH" not in capfd.readouterr().err  # transformers would print a table besides


def test_a_revision_of_a_folder_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"^--revision: .* is a folder, not a model of the hub"):
        load_policy(str(tmp_path), revision="v1")


def test_a_model_that_sees_what_follows_is_refused(tokenizer, tmp_path):
    BertConfig().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="'bert' model, which is not a causal"):
        load_policy(str(tmp_path))


def test_weights_that_are_not_there_are_not_made_up(model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    layers = config["num_hidden_layers"] + 1
    types = [*config["layer_types"], "full_attention"]
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers, "layer_types": types}))
    with pytest.raises(UsageError, match=rf"do not fit its config.json: \d+ are missing, such as model.layers.{layers - 1}"):
        load_policy(str(tmp_path))


@pytest.mark.slow
def test_a_cut_download_is_refused(model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(UsageError, match="weights do not load"):
        load_policy(str(tmp_path))


def test_a_folder_without_its_tokenizer_is_refused(model, tmp_path):
    model.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="tokenizer"):
        load_policy(str(tmp_path))


def test_a_typo_beside_other_models_is_not_asked_of_the_hub(tmp_path, monkeypatch):
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="--model checkpoints/sfft: there is no such folder"):
        load_policy("checkpoints/sfft")


def test_memory_is_foretold_with_a_remedy(model):
    def estimate(**kwargs):
        return estimate_training(model.config, parameters=17_837_056, row_tokens=65536, weight_bytes=4, **kwargs)

    full, checkpointed = estimate(), estimate(gradient_checkpointing=True)
    assert full.optimizer_bytes == 17_837_056 * 8
    assert checkpointed.activations_bytes < full.activations_bytes / 3
    assert estimate(lora_rank=16).optimizer_bytes < full.optimizer_bytes / 10
    require_memory(full, 80 * 2**30, lora=False, gradient_checkpointing=False)
    with pytest.raises(UsageError, match=r"--gradient-checkpointing or a smaller --row-tokens or --lora"):
        require_memory(full, 2**30, lora=False, gradient_checkpointing=False)
    with pytest.raises(UsageError, match=r"2\.0 GiB .* 1\.0 GiB are free"):
        require_memory(MemoryEstimate(2**31, 0, 0, 0), 2**30, lora=True, gradient_checkpointing=True)
    with pytest.raises(UsageError, match="use a smaller --lora-rank or a smaller --row-tokens"):
        require_memory(MemoryEstimate(2**30, 2**30, 2**31, 0), 2**30, lora=True, gradient_checkpointing=True)


def test_phrases_shorten_code_and_survive_plain_loading(tmp_path):
    from transformers import AutoTokenizer

    lines = [f"    x = tl.load({name}_ptr + offs, mask=mask)\n    y = {i}1024 + x\n" for i in range(9) for name in "abcdefgh"]
    texts = ["".join(lines)] * 4
    tokenizer = train_tokenizer(texts, vocab_size=400)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = texts[0] + "    unseen = naïve(汉字)\n"
    assert loaded(text).input_ids == tokenizer(text).input_ids
    assert loaded.decode(loaded(text).input_ids, skip_special_tokens=True) == text
    assert any("x = tl.load(" in phrase for phrase in loaded.get_added_vocab())
    assert len(loaded(lines[0]).input_ids) < 20
    assert not any(t[:1].isdigit() or t[-1:].isdigit() for t in loaded.get_added_vocab())


@pytest.mark.parametrize(("schedule", "middle", "last"), [("cosine", 0.55, 0.1), ("linear", 0.55, 0.1), ("constant", 1.0, 1.0)])
def test_the_rate_warms_up_and_falls_by_its_schedule(schedule, middle, last):
    settings = FinetuneSettings(steps=110, rows_per_step=1, learning_rate=1.0, warmup_ratio=10 / 110, schedule=schedule)
    rate = partial(Finetuner.learning_rate, SimpleNamespace(settings=settings))
    assert [round(rate(step), 3) for step in (0, 4, 9)] == [0.1, 0.5, 1.0]
    assert rate(60) == pytest.approx(middle)
    assert rate(110) == pytest.approx(last)
    assert rate(35) == pytest.approx(
        {"cosine": 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4)), "linear": 0.775, "constant": 1}[schedule]
    )


def test_recomputing_activations_warns_of_nothing() -> None:
    model = tiny_policy().model
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recompute_activations(model)
    assert any(getattr(part, "gradient_checkpointing", False) for part in model.modules())
