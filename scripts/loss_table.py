"""The page and the plot of `bench_loss.py`'s figures."""

from paragraphs import wrapped

TITLES = {
    "tokens": ("Log-probs in (`ppo_loss`: dual clip, token correction, float32 mask)", "B × T"),
    "ratio": ("Both policies' logits in (`ratio_kl`), bfloat16", "N × V"),
    "logits": ("Logits in", "N × V"),
    "variants": ("Other loss types, logits in, in place, bfloat16 (`grpo_loss`; KL and mask as above)", "N × V"),
    "logprobs": ("Log-probs and entropies of logits, bfloat16 (`token_logprobs`)", "N × V"),
    "linear": ("Hidden states in", "N × H (V = 151936)"),
    "cross_entropy": ("Next-token loss from hidden states (`linear_cross_entropy`)", "N × H (V = 151936)"),
    "host": ("What a call costs the host, forward + backward of 512 tokens", "N × V or N × H (V = 151936)"),
    "parallel": ("A vocabulary over two GPUs: `grpo_loss` (N × V) and `linear_grpo_loss` (N × H, V = 151936)", "shape"),
}


def markdown(data: dict) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in data["versions"].items() if value)
    lines = [
        wrapped(
            f"Measured on {data['date']} on one {data['gpu']}{_duration(data)}: {versions}, CUDA {data['cuda']}, "
            f"commit {data['commit']}. "
            f"Copy bandwidth {data['copy_gb_per_s']:.0f} GB/s (read + write). Forward + backward, GRPO with a k3 KL unless "
            "another loss is named, every token active unless a density is given. Host and wall time were taken on an idle GPU "
            f"with a cold cache; on this host autograd alone, around a function that does nothing, takes "
            f"{data['autograd_us']:.0f} µs."
        ),
        "",
    ]
    for kind, (title, shape_name) in TITLES.items():
        rows = data.get(kind)
        if not rows:
            continue
        lines += [f"## {title}", ""]
        if "floor" in rows[0]:
            lines += [wrapped(f"Floor: {rows[0]['floor']}."), ""]
        columns = [(shape_name, _shape), ("implementation", lambda row: row["name"])]
        if "ms" in rows[0]:
            columns += _TIMES
        if "peak_gib" in rows[0]:
            columns.append(("peak above inputs and gradients, GiB", lambda row: _number(row["peak_gib"], ".2f")))
        if "clock_mhz" in rows[0]:
            columns.append(("clock, MHz", lambda row: _number(row["clock_mhz"], ".0f")))
        if "host_us" in rows[0]:
            columns.append(("host, µs", lambda row: _number(row["host_us"], ".0f")))
            columns.append(("wall, µs", lambda row: _number(row["wall_us"], ".0f")))
        lines.append("| " + " | ".join(name for name, _ in columns) + " |")
        lines.append("|---|---|" + "---:|" * (len(columns) - 2))
        lines += ["| " + " | ".join(cell(row) for _, cell in columns) + " |" for row in rows]
        lines.append("")
    return "\n".join(lines)


_TIMES = [
    ("ms", lambda row: _number(row["ms"], ".3f")),
    ("× floor", lambda row: _number(row["x_floor"], ".2f")),
]


def _duration(data: dict) -> str:
    """Of the whole run, which older records do not have."""
    return f" in {data['seconds'] / 60:.0f} minutes" if "seconds" in data else ""


def _shape(row: dict) -> str:
    text = " × ".join(map(str, row["shape"]))
    if row.get("dtype", "bfloat16") != "bfloat16":
        text += f", {row['dtype']}"
    if row.get("density", 1) < 1:
        text += f", density {row['density']}"
    return text


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def svg(data: dict) -> str:
    """Two panels of bars: time over the floor, and memory, for logits in and hidden states in."""
    panels = []
    for kind, shape, title in (
        ("logits", [8192, 151936], "Logits in, 8192 × 151936: time over one read + write"),
        ("linear", [8192, 1536], "Hidden states in, 8192 × 1536 × 151936: time over three GEMMs"),
    ):
        rows = [
            row
            for row in data[kind]
            if row["shape"] == shape and row["ms"] and row.get("density", 1) == 1 and row.get("dtype", "bfloat16") == "bfloat16"
        ]
        panels.append((title, rows))
    width, bar, gap = 860, 18, 7
    out, y = [], 24
    for title, rows in panels:
        out.append(f'<text x="12" y="{y}" font-weight="bold">{title}</text>')
        y += 14
        most = max(row["x_floor"] for row in rows)
        for row in rows:
            length = max(2, 420 * row["x_floor"] / most)
            fill = "#2a6f4e" if row["name"].startswith("kernrl") else "#9aa5b1"
            label = f"{row['x_floor']:.2f}×, {row['ms']:.2f} ms, {row['peak_gib']:.2f} GiB"
            out.append(f'<text x="300" y="{y + 13}" text-anchor="end">{row["name"]}</text>')
            out.append(f'<rect x="308" y="{y}" width="{length:.0f}" height="{bar}" fill="{fill}"/>')
            out.append(f'<text x="{316 + length:.0f}" y="{y + 13}">{label}</text>')
            y += bar + gap
        y += 26
    body = "\n".join(out)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 80}" height="{y}" font-family="sans-serif" font-size="12">'
    return f'{head}\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
