"""Honest candidates made from templates: one algorithm in many tile sizes, grids and ways of writing it.

`made()` gives (name, source) pairs; the files of tests/honest are written by hand, for the habits templates do not have.
"""

# ruff: noqa: C408, E501
from __future__ import annotations

from collections.abc import Iterator

IMPORTS = (
    "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\nimport triton\nimport triton.language as tl\n\n\n"
)


def made() -> Iterator[tuple[str, str]]:
    """Every templated candidate, as (name, source with its header)."""
    yield from _pointwise()
    yield from _rows()
    yield from _products()
    yield from _tails()
    yield from _channels()


# -- pointwise: how the index runs -----------------------------------------------------------------------------------

_MISH = {
    "ratio": "e = tl.exp(tl.minimum(t, 20.0))\n    n = e * (e + 2.0)\n    m = tl.where(t > 20.0, t, t * n / (n + 2.0))",
    "log": "sp = tl.maximum(t, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(t)))\n    u = tl.exp(-2.0 * sp)\n    m = t * (1.0 - u) / (1.0 + u)",
}
_POINTWISE = """\
@triton.jit
def mish(t):
    {mish}
    return m


@triton.jit
def chain({params}):
{body}


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y = torch.empty_like(x)
        {launch}
        return y
"""
_VALUE = "tl.minimum(tl.maximum(mish(v * scale) + v, -1.0), 3.0)"


def _pointwise() -> Iterator[tuple[str, str]]:
    for form, mish in _MISH.items():
        for block, warps in ((256, 2), (1024, 4), (4096, 8)):
            flat = f"""\
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(y + i, {_VALUE}, mask=i < n)"""
            stride = f"""\
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + i, mask=i < n, other=0.0)
        tl.store(y + i, {_VALUE}, mask=i < n)"""
            launch = f"chain[(triton.cdiv(x.numel(), {block}),)](x, y, x.numel(), self.scale, BLOCK={block}, num_warps={warps})"
            some = launch.replace(f"(triton.cdiv(x.numel(), {block}),)", f"(min(264, triton.cdiv(x.numel(), {block})),)")
            for index, body, call in (("flat", flat, launch), ("grid_stride", stride, some)):
                source = _POINTWISE.format(mish=mish, params="x, y, n, scale, BLOCK: tl.constexpr", body=body, launch=call)
                yield f"mish_{form}_{index}_{block}", f"# task: mish_chain\n{IMPORTS}{source}"


# -- rows: one row a program, whole or in blocks ---------------------------------------------------------------------

_WHOLE = """\
@triton.jit
def kernel(x, y{extra}, N, {scalar}, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * N
    i = tl.arange(0, BLOCK)
    k = i < N
    v = tl.load(x + row + i, mask=k, other={other})
    {body}
    tl.store({where}, {value}{mask})


class ModelNew(nn.Module):
    def __init__(self{init}):
        super().__init__()
        {fields}

    def forward(self, x{inputs}):
        M, N = x.shape
        y = {alloc}
        kernel[(M,)](x, y{pass_extra}, N, {pass_scalar}, BLOCK=triton.next_power_of_2(N), num_warps={warps})
        return y
"""
_ROW = [
    dict(name="softmax", task="softmax_temperature", extra="", scalar="t", other='-float("inf")', value="e / s",
         body="v = v {scale}\n    e = tl.{exp}((v - tl.max(v, axis=0)){log2})\n    s = tl.sum(e, axis=0)",
         init=", temperature", fields="self.t = {t}", pass_scalar="self.t"),
    dict(name="logsumexp", task="bias_logsumexp", extra=", b", scalar="shift", other='-float("inf")', value="r",
         body="v += tl.load(b + i, mask=k, other=0.0)\n    top = tl.max(v, axis=0)\n"
              "    z = top + tl.log(tl.sum(tl.{exp}((v - top){log2}), axis=0)) - shift\n"
              "    r = tl.maximum(z, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(z)))",
         init=", features", fields="self.bias = nn.Parameter(torch.zeros(features))", pass_extra=", self.bias", pass_scalar="2.0",
         where="y + tl.program_id(0)", mask="", alloc="x.new_empty(M, 1)"),
    dict(name="rmsnorm", task="rmsnorm_silu_gate", extra=", g, w", scalar="eps", other="0.0", value="v * r * wv * (gv * tl.sigmoid(gv))",
         body="gv = tl.load(g + row + i, mask=k, other=0.0)\n    wv = tl.load(w + i, mask=k, other=0.0)\n    r = {rsqrt}(tl.sum(v * v, axis=0) / N + eps)",
         init=", dim, eps", fields="self.weight = nn.Parameter(torch.ones(dim))\n        self.eps = eps", inputs=", gate",
         pass_extra=", gate, self.weight", pass_scalar="self.eps"),
]  # fmt: skip


def _rows() -> Iterator[tuple[str, str]]:
    defaults = dict(where="y + row + i", mask=", mask=k", inputs="", pass_extra="", alloc="torch.empty_like(x)")
    spellings = [
        dict(exp="exp", log2="", scale="/ t", t="temperature", rsqrt="tl.rsqrt", warps=1),
        dict(exp="exp", log2="", scale="* t", t="1.0 / temperature", rsqrt="1.0 / tl.sqrt", warps=4),
        dict(exp="exp2", log2=" * 1.4426950408889634", scale="/ t", t="temperature", rsqrt="tl.math.rsqrt", warps=8),
        dict(exp="math.exp", log2="", scale="* (1.0 / t)", t="float(temperature)", rsqrt="1 / tl.math.sqrt", warps=16),
    ]
    for row in _ROW:
        for number, spelling in enumerate(spellings):
            parts = defaults | row | dict(warps=spelling["warps"])
            for key in ("body", "fields"):
                parts[key] = parts[key].format(**spelling)
            yield f"{row['name']}_whole_row_{number}", f"# task: {row['task']}\n{IMPORTS}{_WHOLE.format(**parts)}"


# -- products: tile sizes, loop forms, operand layouts ---------------------------------------------------------------

_GEMM = """\
@triton.jit
def gemm(a, b, {pointers}c, M, N, K, {scalars}BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id({first}) * BM + tl.arange(0, BM)
    rn = tl.program_id({second}) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in {loop}:
        rk = k{times} + tl.arange(0, BK)
        x = tl.load(a + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
        w = tl.load(b + {b_index}, mask=(rk[:, None] < K) & (rn[None, :] < N), other=0.0)
        {dot}
    inside = (rm[:, None] < M) & (rn[None, :] < N)
    {tail}
    tl.store(c + rm[:, None] * N + rn[None, :], out, mask=inside)


class ModelNew(nn.Module):
    {init}

    def forward(self, x{inputs}):
        M, K = x.shape
        N = {n}
        y = torch.empty((M, N), device=x.device, dtype=x.dtype)
        grid = ({grid})
        gemm[grid](x, {arguments}, BM={bm}, BN={bn}, BK={bk}, num_warps={warps}, num_stages={stages})
        return y
"""
_LINEAR = dict(
    pointers="bias, ", scalars="", b_index="rn[None, :] * K + rk[:, None]", inputs="", n="self.linear.weight.shape[0]",
    tail="z = acc + tl.load(bias + rn, mask=rn < N, other=0.0)[None, :]\n    out = 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))",
    init="def __init__(self, in_features, out_features):\n        super().__init__()\n        self.linear = nn.Linear(in_features, out_features)",
    arguments="self.linear.weight, self.linear.bias, y, M, N, K",
)  # fmt: skip
_MATMUL = dict(
    pointers="r, ", scalars="scale, low, high, ", b_index="rk[:, None] * N + rn[None, :]", inputs=", residual", n="self.weight.shape[1]",
    tail="z = acc * scale + tl.load(r + rm[:, None] * N + rn[None, :], mask=inside, other=0.0)\n    out = tl.minimum(tl.maximum(z, low), high)",
    init="def __init__(self, in_features, out_features, scale, low, high):\n        super().__init__()\n"
         "        self.weight = nn.Parameter(torch.randn(in_features, out_features))\n        self.numbers = scale, low, high",
    arguments="self.weight, residual, y, M, N, K, *self.numbers",
)  # fmt: skip


def _products() -> Iterator[tuple[str, str]]:
    tiles = [
        (16, 16, 16, 1, 1),
        (32, 64, 16, 4, 2),
        (64, 32, 32, 4, 3),
        (64, 64, 16, 4, 2),
        (128, 64, 16, 8, 2),
        (32, 128, 32, 4, 2),
    ]
    for number, (bm, bn, bk, warps, stages) in enumerate(tiles):
        form = dict(loop="range(0, K, BK)", times="", dot='acc += tl.dot(x, w, input_precision="ieee")')
        if number % 2:
            form = dict(loop="range(tl.cdiv(K, BK))", times=" * BK", dot='acc = tl.dot(x, w, acc, input_precision="ieee")')
        cells = [f"triton.cdiv(M, {bm})", f"triton.cdiv(N, {bn})"]
        first, second = (1, 0) if number % 3 == 2 else (0, 1)
        tile = dict(bm=bm, bn=bn, bk=bk, warps=warps, stages=stages, first=first, second=second)
        grid = ", ".join(cells[::-1] if first else cells)
        for task, family in (("linear_gelu", _LINEAR), ("matmul_residual_clamp", _MATMUL)):
            yield f"{task}_tile_{bm}x{bn}x{bk}", f"# task: {task}\n{IMPORTS}{_GEMM.format(**family, **form, **tile, grid=grid)}"


# -- library producer, then a pointwise tail -------------------------------------------------------------------------

_TAIL = """\
@triton.jit
def tail(z, bias, y, n, C, BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(z + i, mask=i < n, other=0.0)
    if HAS_BIAS:
        v += tl.load(bias + i % C, mask=i < n, other=0.0)
    tl.store(y + i, v * 0.5 * (1.0 + tl.erf(v * 0.7071067811865476)), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        w, b = self.linear.weight, self.linear.bias
        z = {product}
        y = {out}
        n = z.numel()
        tail[(triton.cdiv(n, {block}),)](z, {bias}, y, n, z.shape[-1], BLOCK={block}, HAS_BIAS={has})
        return y
"""


def _tails() -> Iterator[tuple[str, str]]:
    products = {
        "module": ("self.linear(x)", "None"),
        "functional": ("F.linear(x, w, b)", "None"),
        "addmm": ("torch.addmm(b, x, w.t())", "None"),
        "mm": ("torch.mm(x, w.t())", "b"),
        "matmul": ("torch.matmul(x, w.transpose(0, 1))", "b"),
        "operator": ("x @ w.T", "b"),
        "einsum": ('torch.einsum("mk,nk->mn", x, w)', "b"),
        "no_bias": ("F.linear(x, w)", "b"),
    }
    for number, (name, (product, bias)) in enumerate(products.items()):
        out = ("z", "torch.empty_like(z)")[number % 2]
        source = _TAIL.format(product=product, bias=bias, has=bias != "None", out=out, block=(512, 1024, 2048)[number % 3])
        yield f"linear_tail_{name}", f"# task: linear_gelu\n{IMPORTS}{source}"


# -- a convolution's channels ----------------------------------------------------------------------------------------

_CHANNEL = """\
@triton.jit
def tail(z, b, y, {sizes}, BLOCK: tl.constexpr):
{index}
    v = tl.load(z + at, mask=live, other=0.0) - {bias}
    t = tl.exp(-2.0 * tl.abs(v))
    r = (1.0 - t) / (1.0 + t)
    tl.store(y + at, tl.where(v < 0, -r, r), mask=live)


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(in_channels, out_channels, 3, stride=2, padding=1, output_padding=1)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x):
        z = self.conv_transpose(x)
        B, C, H, W = z.shape
        y = torch.empty_like(z)
        {launch}
        return y
"""


def _channels() -> Iterator[tuple[str, str]]:
    for block in (128, 512):
        flat = dict(
            sizes="n, C, HW", bias="tl.load(b + (at // HW) % C, mask=live, other=0.0)",
            index="    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    live = at < n",
            launch=f"tail[(triton.cdiv(z.numel(), {block}),)](z, self.bias, y, z.numel(), C, H * W, BLOCK={block})",
        )  # fmt: skip
        plane = dict(
            sizes="C, HW", bias="tl.load(b + tl.program_id(1) % C)",
            index="    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    live = i < HW\n    at = tl.program_id(1) * HW + i",
            launch=f"tail[triton.cdiv(H * W, {block}), B * C](z, self.bias.view(-1), y, C, H * W, BLOCK={block})",
        )  # fmt: skip
        squeezed = plane | dict(launch=plane["launch"].replace("self.bias.view(-1)", "self.bias.squeeze().contiguous()"))
        for name, form in (("flat", flat), ("plane", plane), ("squeezed", squeezed)):
            yield f"convtranspose_{name}_{block}", f"# task: convtranspose_tanh\n{IMPORTS}{_CHANNEL.format(**form)}"
