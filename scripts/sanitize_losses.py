"""Have compute-sanitizer look at one small case of every loss kernel, for bad addresses (memcheck) and races (racecheck).

    python scripts/sanitize_losses.py                    # four cases at a time, a minute or two each
    python scripts/sanitize_losses.py --kernels _loss    # those alone whose name begins so

Prints a line for each tool and kernel. Exit code 1 if anything was found, 2 if compute-sanitizer is not installed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOOLS = ("memcheck", "racecheck")
FOUND, NOT_HERE = 86, 77  # exit codes: of the sanitizer where it found something, of a case that this GPU cannot run
OF_TOOLKIT = "/usr/local/cuda/bin"


def grpo(vocab: int, dtype: str = "bfloat16", factor: float = 1.0, on_chip: bool = False, **options) -> None:
    """`grpo_loss` of three sequences of three tokens, some masked, and its gradient times `factor`."""
    import torch

    from kernrl.kernels import grpo_loss
    from kernrl.kernels.over_logits import resident

    # Made on the CPU, so that the kernels that are looked at are kernrl's.
    logits = torch.randn(3, 3, vocab).to(getattr(torch, dtype)).cuda().requires_grad_()
    if on_chip and resident.layout_for(logits) is None:
        sys.exit(NOT_HERE)
    old, ref, rollout = (torch.randn(3, 3).cuda() - 10 for _ in range(3))
    mask, ids = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 1]]).bool().cuda(), torch.randint(0, vocab, (3, 3)).cuda()
    loss, _ = grpo_loss(
        logits, ids, advantages=torch.randn(3).cuda(), temperature=0.9, old_logprobs=old, ref_logprobs=ref, beta=0.1,
        rollout_logprobs=rollout, mask=mask, inplace=False, **options,
    )  # fmt: skip
    loss.backward(torch.tensor(factor).cuda())


def ppo(n: int, **options) -> None:
    import torch

    from kernrl.kernels import ppo_loss

    new, old, advantages = (torch.randn(4, n // 4).cuda() for _ in range(3))
    ppo_loss(new.requires_grad_(), old, advantages, (torch.rand(4, n // 4) < 0.7).cuda(), **options)[0].backward()


def logprobs(vocab: int) -> None:
    import torch

    from kernrl.kernels import token_logprobs

    logits, ids = torch.randn(5, vocab).cuda().requires_grad_(), torch.randint(0, vocab, (5,)).cuda()
    torch.autograd.backward(token_logprobs(logits, ids, temperature=0.9), torch.randn(2, 5).cuda().unbind())


def ratios(vocab: int, dtype: str = "float32") -> None:
    import torch

    from kernrl.kernels import ratio_kl

    policy, ref = (torch.randn(5, vocab).to(getattr(torch, dtype)).cuda() for _ in range(2))
    ids, mask, old = torch.randint(0, vocab, (5,)).cuda(), torch.tensor([1, 0, 1, 1, 1]).bool().cuda(), torch.randn(5).cuda()
    torch.autograd.backward(ratio_kl(policy.requires_grad_(), ref, ids, mask, old), torch.randn(2, 5).cuda().unbind())


CASES: dict[str, Callable[[], None]] = {
    "_resident_kernel, short rows": lambda: grpo(32768, on_chip=True),
    "_resident_kernel, odd rows": lambda: grpo(50257, on_chip=True),
    "_resident_kernel, long rows": lambda: grpo(151936, on_chip=True),
    "_resident_kernel, rows of two programs": lambda: grpo(201088, on_chip=True),
    "_resident_kernel, odd rows of four programs": lambda: grpo(262141, "float32", on_chip=True),
    "_resident_kernel, with an entropy bonus": lambda: grpo(100000, on_chip=True, entropy_coef=0.1),
    "_loss_kernel": lambda: grpo(4096),
    "_loss_kernel, odd rows": lambda: grpo(4099),
    "_loss_kernel, float32, with an entropy bonus": lambda: grpo(4099, "float32", entropy_coef=0.1),
    "_stats_kernel and _gradient_kernel": lambda: logprobs(4096),
    "_stats_kernel and _gradient_kernel, odd rows": lambda: logprobs(4099),
    "_forward_kernel and _backward_kernel": lambda: ratios(4096),
    "_forward_kernel and _backward_kernel, odd rows": lambda: ratios(4099),
    "_forward_kernel and _backward_kernel, many tiles": lambda: ratios(50304, "bfloat16"),
    "_forward_kernel and _backward_kernel, many tiles of odd rows": lambda: ratios(50257, "bfloat16"),
    "_tokens_kernel, waiting for its count": lambda: ppo(20_000),
    "_tokens_kernel, count given": lambda: ppo(20_000, num_tokens=1e4),
    "_tokens_kernel, by sequence": lambda: ppo(20_000, loss_type="gspo"),
    "_tokens_kernel, gmpo": lambda: ppo(20_000, loss_type="gmpo"),
    "_tokens_kernel, vespo": lambda: ppo(800, loss_type="vespo"),
    "_count_kernel and _shares_kernel": lambda: grpo(4096, correction="sequence_truncate"),
    "_scale_kernel, by another factor than 1": lambda: grpo(4096, factor=2.0),
}


def program() -> str | None:
    return shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', '')}{os.pathsep}{OF_TOOLKIT}")


def judge(sanitizer: str, tool: str, case: str) -> tuple[str, str]:
    """(what is to be said of the case, what the tool wrote if it is not fine)."""
    command = [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), sys.executable, str(Path(__file__).resolve())]
    # Without the cache each tensor is an allocation of its own, and what lies behind it is no other tensor's.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run([*command, "--case", case], env=environment, capture_output=True, text=True)
    written = done.stdout + done.stderr
    if done.returncode == NOT_HERE:
        return "not run, this GPU does not hold rows on chip", ""
    found = [int(n) for n in re.findall(r"SUMMARY: (\d+) (?:errors?|hazards?)", written)]
    if done.returncode == FOUND or any(found):
        return f"{max(found, default=1)} found", written
    if done.returncode or not found:  # without a summary the tool has not looked
        return f"failed (exit code {done.returncode})", written
    return "nothing found", ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", default="", help="how the names of the kernels begin that are looked at; all by default")
    parser.add_argument("--jobs", type=int, default=4, help="cases looked at at once")
    parser.add_argument("--case", choices=CASES, help="run this case itself, as is done under compute-sanitizer")
    args = parser.parse_args()
    if args.case:
        import torch

        torch.manual_seed(0)
        CASES[args.case]()
        torch.cuda.synchronize()
        return 0
    sanitizer = program()
    if not sanitizer:
        print("compute-sanitizer is not installed: it comes with the CUDA toolkit; put its folder into PATH", file=sys.stderr)
        return 2
    bad = False
    asked = [(tool, case) for tool in TOOLS for case in CASES if case.startswith(args.kernels)]
    with ThreadPoolExecutor(args.jobs) as pool:
        answers = pool.map(lambda one: judge(sanitizer, *one), asked)
        for (tool, case), (said, written) in zip(asked, answers, strict=True):
            print(f"{tool}: {case}: {said}", flush=True)
            if written:
                bad = True
                print("\n".join(f"    {line}" for line in written.splitlines()[:60]), flush=True)  # the first error says most
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
