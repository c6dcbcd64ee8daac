"""Compare variants of the losses' kernels on one GPU: layouts of rows held on chip, of the tokens' kernel, of ratio_kl's.

python scripts/loss_variants.py logits --out logits.json      # compiles its kernels in parallel processes first
python scripts/loss_variants.py rest --out rest.json
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
from bench_loss import make_tokens, our_options
from loss_timing import forward_backward, host_and_wall_us, medians_ms

from kernrl.kernels import grpo_loss, ppo_loss, ratio_kl
from kernrl.kernels.over_logits import resident
from kernrl.kernels.over_tokens import token_reduce

BF16, FP32 = torch.bfloat16, torch.float32
LONG, MIDDLE, SHORT = resident._LONG, resident._MIDDLE, resident._SHORT
WIDE = LONG._replace(chunk_bytes=16384, slots=14, held=5, lag=4, parts=2)
MIDDLE_WIDE = MIDDLE._replace(chunk_bytes=16384, slots=7, held=1, lag=2, parts=2)
SHORT_WIDE = SHORT._replace(chunk_bytes=4096, slots=13, held=4, lag=2, parts=2)
THREE = SHORT._replace(chunk_bytes=4096, slots=17, held=8, lag=4, programs_per_sm=3, max_registers=168)
TWO, WIDE_TWO = LONG._replace(sharers=2), WIDE._replace(sharers=2)
FOUR, WIDE_FOUR = LONG._replace(sharers=4), WIDE._replace(sharers=4)


def a(layout, ahead):
    return layout._replace(ahead=ahead)


LONG_SHARED = {"two": TWO, "two, 4 ahead": a(TWO, 4), "two, 10 ahead": a(TWO, 10), "wide two": WIDE_TWO,
               "wide two, 2 ahead": a(WIDE_TWO, 2), "wide two, 5 ahead": a(WIDE_TWO, 5)}  # fmt: skip
CASES: list[tuple] = [
    (8192, 262144, BF16, 1.0, LONG_SHARED),
    (8192, 201088, BF16, 1.0, LONG_SHARED),
    (8192, 151936, BF16, 1.0, {"long": LONG, "wide": WIDE, "wide, lag 3": WIDE._replace(lag=3),
                               "wide two, 4 ahead": a(WIDE_TWO, 4)}),
    (8192, 151937, BF16, 1.0, {"long": LONG, "wide": WIDE, "two, 8 ahead": a(TWO, 8), "wide two, 4 ahead": a(WIDE_TWO, 4)}),
    (8192, 50257, BF16, 1.0, {"middle": MIDDLE, "middle wide": MIDDLE_WIDE, "three": THREE, "long, 5 ahead": a(LONG, 5)}),
    (8192, 128256, BF16, 1.0, {"long": LONG, "long, 4 ahead": a(LONG, 4), "wide": WIDE, "wide, 3 ahead": a(WIDE, 3)}),
    (8192, 100000, BF16, 1.0, {"long": LONG, "wide, 4 ahead": a(WIDE, 4)}),
    (8192, 65536, BF16, 1.0, {"middle": MIDDLE, "middle wide": MIDDLE_WIDE}),
    (8192, 32000, BF16, 1.0, {"short": SHORT, "short wide": SHORT_WIDE}),
    (8192, 256000, BF16, 1.0, {"two": TWO, "two, 4 ahead": a(TWO, 4), "wide two, 2 ahead": a(WIDE_TWO, 2)}),
    (4096, 128256, FP32, 1.0, {"two": TWO, "two, 10 ahead": a(TWO, 10), "wide two, 3 ahead": a(WIDE_TWO, 3)}),
    (4096, 262144, FP32, 1.0, {"four": FOUR, "four, 10 ahead": a(FOUR, 10), "wide four, 3 ahead": a(WIDE_FOUR, 3)}),
    (512, 151936, BF16, 1.0, {"long": LONG, "wide": WIDE, "wide two, 4 ahead": a(WIDE_TWO, 4)}),
    (512, 262144, BF16, 1.0, {"two": TWO, "two, 10 ahead": a(TWO, 10), "wide two, 2 ahead": a(WIDE_TWO, 2)}),
    (512, 50257, BF16, 1.0, {"middle": MIDDLE, "three": THREE, "middle wide": MIDDLE_WIDE}),
    (8192, 151936, BF16, 0.25, {"long": LONG, "wide": WIDE}),
    (8192, 262144, BF16, 0.25, {"two": TWO, "two, 10 ahead": a(TWO, 10), "wide two, 2 ahead": a(WIDE_TWO, 2)}),
]  # fmt: skip


def fitted(layout, vocab: int, item_bytes: int):
    """`layout` as `layout_of_row` cuts it to a row."""
    known, resident._LAYOUTS = resident._LAYOUTS, (layout,)
    try:
        return resident.layout_of_row(vocab, item_bytes)
    finally:
        resident._LAYOUTS = known


def every_kernel() -> list[tuple]:
    """(vocab, dtype, layout) of everything that a run compiles, once each."""
    seen = {}
    for _, vocab, dtype, _, layouts in CASES:
        for layout in layouts.values():
            cut = fitted(layout, vocab, dtype.itemsize)
            if cut:
                seen[cut, vocab * dtype.itemsize % 128 == 0, dtype] = vocab, dtype, cut
    return list(seen.values())


def use(layout) -> None:
    resident.layout_for = lambda logits: layout


def compile_part(part: int, parts: int) -> None:
    for vocab, dtype, layout in every_kernel()[part::parts]:
        use(layout)
        try:
            tokens = make_tokens(512, vocab, 0.9)
            logits = torch.randn(*tokens["ids"].shape, vocab, device="cuda", dtype=dtype)
            forward_backward(lambda x, tokens=tokens: grpo_loss(x, tokens["ids"], **our_options(tokens))[0], logits)
        except Exception as error:
            print("not compiled:", vocab, dtype, layout, str(error).splitlines()[0][:200], flush=True)

    for i, chosen in enumerate(TOKENS.values()):
        for b, t in ((128, 512), (512, 2048), (1024, 8192)) if i % parts == part else ():
            x, mask = torch.randn(b, t, device="cuda"), torch.ones(b, t, device="cuda")
            for given in ({}, {"num_tokens": 1000.0}):
                set_tokens(*chosen)
                options = {"delta": 3.0, "correction": "token_truncate", "rollout_logprobs": x, **given}
                forward_backward(lambda y, x=x, mask=mask, options=options: ppo_loss(y, x, x, mask, **options)[0], x)
    for i, tiles in enumerate(TILES.values()):
        for vocab in (32768, 50257) if (i + len(TOKENS)) % parts == part else ():
            set_tiles(tiles)
            x, ids = torch.randn(4096, vocab, device="cuda", dtype=BF16), torch.zeros(4096, dtype=torch.int64, device="cuda")
            old, mask = torch.zeros(4096, device="cuda"), torch.ones(4096, dtype=torch.bool, device="cuda")
            torch.autograd.backward(ratio_kl(x.requires_grad_(), x.detach(), ids, mask, old, 0.9), (old, old))


def error_of(logits, master, tokens) -> float:
    """Largest relative error of some rows' gradient against float64, of the gradient that overwrote `logits`."""
    vocab = logits.shape[-1]
    flat, n = logits.reshape(-1, vocab), tokens["ids"].numel()
    chosen = torch.tensor([0, 1, 65, 66, 131, 132, 133, n // 2 + 5, n - 2, n - 1], device="cuda") % n
    leaf = master.reshape(-1, vocab)[chosen].double().requires_grad_()
    pick = {name: tokens[name].reshape(-1)[chosen] for name in ("ids", "old", "ref", "mask")}
    each = tokens["advantages"].repeat_interleave(n // len(tokens["advantages"]))[chosen]
    logp = (leaf / 0.9).log_softmax(-1).gather(-1, pick["ids"][:, None])[:, 0]
    ratio = (logp - pick["old"]).exp()
    d = pick["ref"] - logp
    policy = -torch.minimum(ratio * each, ratio.clamp(0.8, 1.2) * each) + 0.04 * (d.exp() - d - 1)
    (policy * pick["mask"]).sum().div(tokens["count"]).backward()
    assert leaf.grad is not None
    wrong = (flat[chosen].double() - leaf.grad).norm(dim=1) / leaf.grad.norm(dim=1).clamp(min=1e-30)
    wrong = wrong.where(pick["mask"], flat[chosen].double().abs().amax(1))
    return wrong.max().item() if wrong.isfinite().all() else float("nan")


def logits_part(out: Path) -> None:
    start = time.perf_counter()
    script, workers = [sys.executable, __file__, "compile"], 8
    running = [subprocess.Popen([*script, f"{i}/{workers}"]) for i in range(workers)]
    for process in running:
        process.wait()
    print(f"compiled in {time.perf_counter() - start:.0f} s", flush=True)
    rows = []
    for n, vocab, dtype, density, layouts in CASES:
        tokens = make_tokens(n, vocab, density)
        master = torch.randn(*tokens["ids"].shape, vocab, device="cuda", dtype=dtype) * 2
        buffer, active = torch.empty_like(master), int(tokens["count"])
        flat, source = buffer.view(n, vocab), master.view(n, vocab)

        def floor(flat=flat, source=source, active=active):
            flat[:active].copy_(source[:active])
            flat[active:].zero_()

        def run(layout, buffer=buffer, tokens=tokens):
            use(layout)
            forward_backward(lambda x: grpo_loss(x, tokens["ids"], **our_options(tokens))[0], buffer)

        runs = {"copy": floor}
        for name, layout in layouts.items():
            cut = fitted(layout, vocab, dtype.itemsize)
            if cut:
                runs[name] = lambda cut=cut, run=run: run(cut)
        times = medians_ms(runs, lambda buffer=buffer, master=master: buffer.copy_(master), rounds=7)
        for name in list(runs)[1:]:
            if name not in times:
                continue
            cut = fitted(layouts[name], vocab, dtype.itemsize)
            buffer.copy_(master)
            run(cut)
            wrong, ratio = error_of(buffer, master, tokens), times[name] / times["copy"]
            rows.append({"n": n, "vocab": vocab, "dtype": str(dtype), "density": density, "variant": name, "ms": times[name],
                         "x_copy": ratio, "error": wrong, "layout": cut._asdict() if cut else None})  # fmt: skip
            print(f"{n:5} {vocab:6} {str(dtype)[6:]:8} {density:4} {name:20} {times[name]:7.3f} ms {ratio:5.2f} x  off {wrong:.0e}"
                  f"  slots {cut.slots} held {cut.held} chunks {cut.chunks}", flush=True)  # fmt: skip
            out.write_text(json.dumps(rows, indent=1))
        del master, buffer, flat, source, runs, floor, run
        torch.cuda.empty_cache()
    print(f"logits took {time.perf_counter() - start:.0f} s", flush=True)


def kernel_times(run) -> str:
    """What the GPU did in `run`, each with its microseconds."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    events = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda e: e.time_range.start)
    return ", ".join(f"{e.name[:24]} {e.time_range.elapsed_us():.1f}" for e in events)


# (tokens a tile, warps, programs an SM, registers a thread, most tiles held, whether launched as a cooperative grid)
TOKENS = {
    "count first": (512, 4, 4, 128, 0), "held": (512, 4, 4, 128, 4), "1024 x 8 warps, 64": (1024, 8, 4, 64, 2),
    "1024 x 8 warps, 80": (1024, 8, 3, 80, 4), "1024 x 8, count first": (1024, 8, 3, 80, 0),
}  # fmt: skip


def set_tokens(block, warps, per_sm, registers, held) -> None:
    token_reduce.BLOCK, token_reduce.WARPS, token_reduce.PER_SM = block, warps, per_sm
    token_reduce.MAX_REGISTERS, token_reduce.MOST_HELD = registers, held
    token_reduce._variant.cache_clear()
    token_reduce._launches.clear()


def rest_part(out: Path) -> None:
    start, rows = time.perf_counter(), []
    for b, t in ((128, 512), (512, 2048), (1024, 8192)):
        logp, advantages = torch.randn(b, t, device="cuda") - 3, torch.randn(b, t, device="cuda")
        old, rollout = (logp + 0.1 * torch.randn_like(logp) for _ in range(2))
        mask = (torch.rand(b, t, device="cuda") < 0.9).float()
        options = {"delta": 3.0, "correction": "token_truncate", "rollout_logprobs": rollout}
        gradients = {}
        for name, chosen in TOKENS.items():
            for given in ({}, {"num_tokens": 1000.0}):
                set_tokens(*chosen)

                def run(given=given, logp=logp, old=old, advantages=advantages, mask=mask, options=options):
                    x = logp.detach().requires_grad_()
                    ppo_loss(x, old, advantages, mask, **options, **given)[0].backward()
                    return x.grad

                gradient = run()
                first = gradients.setdefault(len(given), gradient)
                wrong = (gradient - first).abs().max().item() / first.abs().max().item()
                same = all(torch.equal(run(), gradient) for _ in range(3))
                us = 1e3 * medians_ms({"": run}, rounds=21)[""]
                host, wall = host_and_wall_us({"": run}, rounds=40)[""] if name in ("count first", "held") else (0, 0)
                rows.append({"b": b, "t": t, "variant": name, "given": bool(given), "us": us, "host_us": host, "wall_us": wall,
                             "kernels": kernel_times(run), "difference": wrong, "bitwise": same})  # fmt: skip
                print(f"ppo {b} x {t} {name:22} {'given' if given else '':5} {us:6.1f} us host {host:4.0f} wall {wall:4.0f} "
                      f"diff {wrong:.0e} same {same}  {rows[-1]['kernels']}", flush=True)  # fmt: skip
    set_tokens(*TOKENS["held"])
    tokens = make_tokens(512, 32768, 1.0)
    logits = torch.randn(*tokens["ids"].shape, 32768, device="cuda", dtype=BF16)
    calls = {"grpo_loss": lambda: forward_backward(lambda x: grpo_loss(x, tokens["ids"], **our_options(tokens))[0], logits)}
    x = torch.zeros(1024, device="cuda", requires_grad=True)
    calls["sum"] = lambda: x.sum().backward()
    for name, (host, wall) in host_and_wall_us(calls).items():
        rows.append({"variant": name, "host_us": host, "wall_us": wall})
        print(f"host {name} {host:.0f} us, wall {wall:.0f}", flush=True)
    out.write_text(json.dumps(rows, indent=1))
    ratio_part(rows)
    out.write_text(json.dumps(rows, indent=1))
    print(f"rest took {time.perf_counter() - start:.0f} s", flush=True)


# (most elements a tile, elements a thread) of the forward kernel, and of the backward one
TILES = {
    "1024x8, 4096x8": ((1024, 8), (4096, 8)), "2048x8, 2048x8": ((2048, 8), (2048, 8)),
    "1024x16, 4096x16": ((1024, 16), (4096, 16)), "512x8, 8192x8": ((512, 8), (8192, 8)),
}  # fmt: skip
RATIO = sys.modules["kernrl.kernels.ratio_kl"]
as_is = RATIO.variant


def set_tiles(tiles) -> None:
    forward, backward = tiles
    RATIO.variant = lambda kernel, most, per, *more: as_is(
        kernel, *(forward if kernel is RATIO._forward_kernel else backward), *more
    )


def ratio_part(rows: list) -> None:
    for vocab in (32768, 50257, 151936, 262144):
        n = 4096
        policy, ref = (torch.randn(n, vocab, device="cuda", dtype=BF16) for _ in range(2))
        out, ids, old = torch.empty_like(ref), torch.randint(0, vocab, (n,), device="cuda"), torch.randn(n, device="cuda") - 12
        mask, weights = torch.ones(n, dtype=torch.bool, device="cuda"), torch.randn(2, n, device="cuda").unbind()

        def run(ids=ids, old=old, mask=mask, weights=weights, policy=policy, ref=ref):
            x = policy.detach().requires_grad_()
            torch.autograd.backward(ratio_kl(x, ref, ids, mask, old, 0.9), weights)

        def with_tiles(tiles, run=run):
            set_tiles(tiles)
            run()

        runs = {"copy": lambda out=out, ref=ref: out.copy_(ref)}
        runs |= {name: lambda each=each, with_tiles=with_tiles: with_tiles(each) for name, each in TILES.items()}
        times = medians_ms(runs, rounds=5)
        for name in TILES:
            x = times[name] / times["copy"] / 1.5
            rows.append({"vocab": vocab, "variant": f"ratio_kl {name}", "ms": times[name], "x_floor": x})
            print(f"ratio_kl {vocab} {name:18} {times[name]:.3f} ms {x:.2f} x  {kernel_times(runs[name])}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("logits", "rest", "compile"))
    parser.add_argument("share", nargs="?", default="0/1", help="of the kernels to compile: i/n")
    parser.add_argument("--out", type=Path, default=Path("variants.json"))
    args = parser.parse_args()
    if args.part == "compile":
        compile_part(*(int(x) for x in args.share.split("/")))
    elif args.part == "logits":
        logits_part(args.out)
    else:
        rest_part(args.out)


if __name__ == "__main__":
    main()
