"""What programs start from: linear and matrix products, convolutions, or a bare input; each with its three input sets."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from kernrl.tasks.grammar.program import Producer, Shape

Sizes = dict[str, dict[str, int]]
"""Input set → constant → value."""

SPACE = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}
CHANNEL_UNIT = 8
"""Full and small channel counts are multiples of this, so that groups divide them; ragged ones of the program's own groups."""


def _matrix_sizes(rng: Random, unit: int, names: tuple[str, str, str], batch: bool) -> Sizes:
    """Rows, inner and columns of a product: outputs of 16 to 128 MB, thin enough inside to leave the tail something."""
    rows, inner, columns = names
    full_columns = rng.choice((512, 768, 1024, 1536, 2048, 3072, 4096))
    total = 2 ** rng.uniform(22, 25)
    full_rows = max(256, 128 * round(total / full_columns / 128))
    full = {rows: full_rows, inner: rng.choice((32, 64, 96, 128, 192, 256)), columns: full_columns}
    # a group of a few numbers would be all equal now and then, and its norm nothing but rounding
    small = {rows: rng.choice((8, 16)), inner: rng.choice((16, 32)), columns: rng.choice((32, 64)) if unit == 1 else 16 * unit}
    odd = rng.choice((19, 29, 37, 53)) if unit == 1 else rng.choice((11, 13, 19))
    ragged = {rows: rng.choice((11, 13, 19)), inner: rng.choice((13, 19, 37)), columns: unit * odd}
    sizes = {"full": full, "small": small, "ragged": ragged}
    if batch:
        full_batch = rng.choice((8, 16, 32))
        full[rows] = max(64, full_rows // full_batch // 32 * 32)
        for values, count in zip(sizes.values(), (full_batch, 2, 3), strict=True):
            values["batch_size"] = count
    return {name: dict(sorted(values.items(), key=lambda item: item[0] != "batch_size")) for name, values in sizes.items()}


def _image_sizes(rng: Random, rank: int, unit: int, channels: str, input_channels: bool) -> Sizes:
    """Batch, channels and pixels: values of 16 to 128 MB at full size."""
    width = rng.choice(({1: (1024, 2048, 4096, 8192), 2: (32, 56, 64, 112, 128), 3: (16, 24, 32)})[rank])
    pixels = width**rank
    full_channels = rng.choice((16, 24, 32, 48, 64, 96, 128))
    batch = max(4, min(256, round(2 ** rng.uniform(22, 25) / full_channels / pixels / 4) * 4))
    odd = rng.choice((1, 3)) if unit > 1 else rng.choice((3, 5, 7, 11))
    small_side, ragged_sides = {1: (32, (37,)), 2: (8, (11, 13)), 3: (6, (7, 5, 9))}[rank]
    full = {"batch_size": batch, channels: full_channels}
    small = {"batch_size": 2, channels: CHANNEL_UNIT}
    ragged = {"batch_size": 3, channels: unit * odd}
    for values, inner in ((full, rng.choice((3, 4, 8, 16, 32))), (small, 4), (ragged, 3)):
        if input_channels:
            values["in_channels"] = inner
    for index, name in enumerate(SPACE[rank]):
        full[name], small[name], ragged[name] = width, small_side, ragged_sides[index]
    order = ["batch_size", "in_channels", channels, *SPACE[rank]]
    return {
        name: {key: values[key] for key in order if key in values}
        for name, values in {"full": full, "small": small, "ragged": ragged}.items()
    }


def linear(rng: Random) -> Producer:
    """`nn.Linear` over a batch of rows."""
    bias = rng.random() < 0.8
    arguments = "in_features, out_features" + ("" if bias else ", bias=False")
    return Producer(
        family="linear",
        inputs=(("x", ("batch_size", "in_features")),),
        after=Shape(("batch_size", "out_features"), "rows"),
        expression="self.linear(x)",
        state=(f"self.linear = nn.Linear({arguments})",),
        bare="F.linear(x, self.linear.weight)" if bias else "",
        functional="F.linear(x, self.linear.weight, self.linear.bias)" if bias else "F.linear(x, self.linear.weight)",
        bias="self.linear.bias" if bias else "",
        flops="2 * batch_size * in_features * out_features",
        gemm=("x", "self.linear.weight"),
        right_transposed=True,
    )


def matmul(rng: Random) -> Producer:
    """A product with a weight of the module, or of two inputs."""
    spelling = rng.choice(("torch.matmul(x, {w})", "torch.mm(x, {w})", "x @ {w}"))
    after = Shape(("batch_size", "out_features"), "rows")
    flops = "2 * batch_size * in_features * out_features"
    left = ("x", ("batch_size", "in_features"))
    if rng.random() < 0.5:
        right = ("y", ("in_features", "out_features"))
        return Producer("matmul", (left, right), after, spelling.format(w="y"), flops=flops, gemm=("x", "y"))
    state = ("self.weight = nn.Parameter(torch.randn(in_features, out_features) * 0.1)",)
    gemm = ("x", "self.weight")
    return Producer("matmul", (left,), after, spelling.format(w="self.weight"), state=state, flops=flops, gemm=gemm)


def bmm(rng: Random) -> Producer:
    """A batch of products of two inputs."""
    return Producer(
        family="bmm",
        inputs=(("x", ("batch_size", "rows", "inner")), ("y", ("batch_size", "inner", "columns"))),
        after=Shape(("batch_size", "rows", "columns"), "rows"),
        expression=rng.choice(("torch.bmm(x, y)", "torch.matmul(x, y)")),
        flops="2 * batch_size * rows * inner * columns",
        gemm=("x", "y"),
    )


# (kernel size, further arguments, output side as an expression of the input side)
CONVOLUTIONS = (
    (3, "padding=1", "{d}"),
    (3, "", "{d} - 2"),
    (3, "stride=2, padding=1", "({d} + 1) // 2"),
    (1, "", "{d}"),
    (5, "padding=2", "{d}"),
)
TRANSPOSED = (
    (3, "padding=1", "{d}"),
    (2, "stride=2", "{d} * 2"),
    (4, "stride=2, padding=1", "{d} * 2"),
    (3, "stride=2, padding=1, output_padding=1", "{d} * 2"),
    (3, "stride=2, padding=1", "{d} * 2 - 1"),
)


def convolution(rng: Random, rank: int, transposed: bool) -> tuple[Producer, int]:
    """A convolution and its kernel size."""
    menu = TRANSPOSED if transposed else CONVOLUTIONS[: 4 if rank == 3 else 5]
    kernel_size, extra, side = rng.choice(menu)
    bias = rng.random() < 0.75
    kind = f"ConvTranspose{rank}d" if transposed else f"Conv{rank}d"
    function = f"F.conv_transpose{rank}d" if transposed else f"F.conv{rank}d"
    options = "".join(f", {part}" for part in (extra, "" if bias else "bias=False") if part)
    tail = f", {extra}" if extra else ""
    after = tuple(side.format(d=name) for name in SPACE[rank])
    work = SPACE[rank] if transposed else tuple(f"({dim})" for dim in after)
    name = "deconv" if transposed and rng.random() < 0.3 else "conv"
    producer = Producer(
        family=f"conv_transpose{rank}d" if transposed else f"conv{rank}d",
        inputs=(("x", ("batch_size", "in_channels", *SPACE[rank])),),
        after=Shape(("batch_size", "out_channels", *after), "grid"),
        expression=f"self.{name}(x)",
        state=(f"self.{name} = nn.{kind}(in_channels, out_channels, kernel_size{options})",),
        bare=f"{function}(x, self.{name}.weight{tail})" if bias else "",
        functional=f"{function}(x, self.{name}.weight, {f'self.{name}.bias' if bias else 'None'}{tail})",
        bias=f"self.{name}.bias" if bias else "",
        flops=f"2 * batch_size * in_channels * out_channels * {kernel_size**rank} * {' * '.join(work)}",
    )
    return producer, kernel_size


def rows(rng: Random) -> Producer:
    """No producer: a batch of feature rows."""
    dims = ("batch_size", "num_features")
    return Producer("rows", (("x", dims),), Shape(dims, "rows"))


def image(rng: Random) -> Producer:
    """No producer: a batch of images."""
    dims = ("batch_size", "channels", "height", "width")
    return Producer("image", (("x", dims),), Shape(dims, "grid"))


MATRICES: dict[str, Callable[[Random], Producer]] = {"linear": linear, "matmul": matmul, "bmm": bmm}
CONVOLVED = tuple(f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3))
FAMILIES = (*MATRICES, *CONVOLVED, "rows", "image")


def draw_producer(family: str, rng: Random) -> tuple[Producer, dict[str, int]]:
    """A producer of that family and the constants that no input set changes."""
    if family in MATRICES:
        return MATRICES[family](rng), {}
    if family == "rows":
        return rows(rng), {}
    if family == "image":
        return image(rng), {}
    producer, kernel_size = convolution(rng, int(family[-2]), "transpose" in family)
    return producer, {"kernel_size": kernel_size}


def draw_sizes(family: str, rng: Random, unit: int) -> Sizes:
    """Three input sets for that family; `unit` divides every channel count."""
    if family == "bmm":
        return _matrix_sizes(rng, unit, ("rows", "inner", "columns"), batch=True)
    if family in MATRICES:
        return _matrix_sizes(rng, unit, ("batch_size", "in_features", "out_features"), batch=False)
    if family == "rows":
        sizes = _matrix_sizes(rng, unit, ("batch_size", "inner", "num_features"), batch=False)
        return {name: {key: n for key, n in values.items() if key != "inner"} for name, values in sizes.items()}
    if family == "image":
        return _image_sizes(rng, 2, unit, "channels", input_channels=False)
    return _image_sizes(rng, int(family[-2]), unit, "out_channels", input_channels=True)
