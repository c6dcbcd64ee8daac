"""Calls of ATen by their full names, for ops that the table of Graphs does not know: `topk`, `median`, an index, a resize."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernrl.tasks.graph.graph import Graph, Node
from kernrl.tasks.solutions.from_graph.lowering.sizes import CannotWriteError, Names

CALLED_BY_NAME = (
    "topk sort argsort median kthvalue cummax cummin index im2col col2im unfold cdist",
    "diagonal trace diag diag_embed diff round cross linalg_cross take_along_dim",
    "upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d grid_sampler affine_grid_generator",
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d",
    "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d",
    "lgamma digamma erfinv count_nonzero rot90 block_diag linspace",
    "scatter scatter_add scatter_reduce index_add index_copy index_fill index_put bucketize searchsorted repeat_interleave",
    "max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d",
    "fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_ihfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn fft_ifftn",
    "fft_rfftn fft_irfftn fft_fftshift fft_ifftshift fft_fftfreq fft_rfftfreq stft hann_window hamming_window",
    "blackman_window bartlett_window kaiser_window logspace",
    "special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t",
    "special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_digamma",
    "special_erfcx special_erfinv special_gammainc special_gammaincc special_gammaln special_hermite_polynomial_h",
    "special_hermite_polynomial_he special_i0 special_i0e special_i1 special_i1e special_laguerre_polynomial_l",
    "special_legendre_polynomial_p special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1",
    "special_modified_bessel_k0 special_modified_bessel_k1 special_multigammaln special_ndtr special_ndtri",
    "special_polygamma special_psi special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1",
    "special_spherical_bessel_j0 special_xlog1py special_zeta i0 igamma igammac mvlgamma polygamma nextafter frexp gcd lcm",
    "ldexp logaddexp2",
    "embedding_bag pdist dist renorm nanmedian quantile nanquantile msort histc multi_margin_loss linalg_vecdot",
    "linalg_diagonal linalg_matmul linalg_matrix_power linalg_vander vander kron cartesian_prod diagflat trapezoid",
    "cumulative_trapezoid take put index_reduce diagonal_scatter as_strided_scatter max_unpool2d max_unpool3d",
)
"""Names of ATen ops, without their overload, that a candidate may leave to the library."""
OF_COMPLEX_NUMBERS = (
    "view_as_complex view_as_real real imag abs angle complex polar conj _conj conj_physical resolve_conj mH mT add sub",
    "rsub mul div neg reciprocal square pow sqrt exp log sin cos tanh sgn where cumsum linalg_vector_norm matmul mm bmm",
    "vdot einsum sum mean to slice select reshape view permute transpose unsqueeze squeeze expand cat stack flatten",
    "contiguous",
)
"""Of those that Graphs know of real numbers alone; of complex ones, which no kernel reads, they are unknown."""


def has_name(node: Node) -> bool:
    """Whether an unknown op can be called as it is."""
    return node.kind == "unknown" and node.op.split(".")[1] in " ".join(CALLED_BY_NAME + OF_COMPLEX_NUMBERS).split()


def call_by_name(node: Node, at: int, operands: Sequence[str], graphs: Sequence[Graph], names: Names, device: str) -> str:
    """The call of an unknown op; what it gives is contiguous.

    Args:
        at: Position of the node in each of the Graphs.
        operands: Python of each operand.
        device: Python of the device on which what is made of nothing is made.

    Raises:
        CannotWriteError: The op has no such call here.
    """
    if not has_name(node):
        raise CannotWriteError(f"no rule for {node.op}")
    rows: list[Mapping[str, Any]] = [dict(g.nodes[at].attributes) for g in graphs]
    schema = _schema(node.op)
    said = []
    for argument in schema:
        if argument.name == "device" and not operands:
            said.append(f"device={device}.device")
        if argument.name not in rows[0]:
            continue
        values = [row[argument.name] for row in rows]
        if len(set(map(repr, values))) == 1 and values[0] == _plain(argument.default_value) and argument.has_default_value():
            continue
        text = _text(values, operands, names.expression)
        said.append(text if argument.name == "self" or argument is schema[0] else f"{argument.name}={text}")
    call = f"torch.ops.{node.op}({', '.join(said)})"
    return f"{call}.contiguous()" if len(node.results) == 1 else f"(part.contiguous() for part in {call})"


def _schema(op: str) -> Sequence[Any]:
    import torch

    namespace, name, overload = op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)._schema.arguments


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _text(values: Sequence[Any], operands: Sequence[str], sized: Callable[[tuple[int, ...]], str]) -> str:
    """Python of an argument, given what it is at each input set."""
    first = values[0]
    if isinstance(first, tuple):
        if len({len(v) for v in values}) > 1:
            raise CannotWriteError("an argument has another length at another input set")
        parts = [_text(column, operands, sized) for column in zip(*values, strict=True)]
        return f"[{', '.join(parts)}]"
    if isinstance(first, str) and first.startswith("%"):
        return operands[int(first[1:])]
    if isinstance(first, str):
        return first if first.startswith("torch.") else repr(first)
    if len(set(values)) > 1:
        if not all(isinstance(v, int) for v in values):
            raise CannotWriteError("an argument is another number at another input set")
        return sized(tuple(values))
    return constant(first)


def constant(value: Any) -> str:
    """Python of a number, a string, or a tuple of whole numbers."""
    return f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else repr(value)
