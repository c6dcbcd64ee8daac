"""The ATen operations that a plan may hold, by kind. Names are ATen's, without namespace, overload and in-place `_`.

This is an allow-list: anything else (random numbers, reading values, resizing storages, files) is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FOURIER = _names("_fft_r2c _fft_c2c _fft_c2r")
"""Fourier transforms of real numbers, of complex ones, and back to real ones; all of torch.fft is made of these."""

LIBRARY = FOURIER | _names(
    "mm addmm bmm baddbmm addbmm mv addmv dot vdot convolution _convolution linear matmul _int_mm _trilinear"
)
"""Matrix products, convolutions and Fourier transforms, which a task may leave to the library."""

FILL = _names(
    "zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full zero fill arange linspace eye scalar_tensor"
    " tril_indices triu_indices logspace hann_window hamming_window blackman_window bartlett_window kaiser_window fft_fftfreq"
    " fft_rfftfreq"
)
"""Making and filling memory. Uninitialised memory is a storage of the plan, not an operation: replay poisons it."""

MOVE = _names(
    "clone copy _to_copy cat stack constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d"
    " replication_pad2d repeat repeat_interleave roll flip tril triu index gather index_select embedding masked_fill where"
    " im2col pixel_shuffle pixel_unshuffle channel_shuffle slice_scatter select_scatter unfold_copy diag_embed expand_copy"
    " view_copy permute_copy index_put scatter scatter_add index_add sort topk col2im index_copy index_fill masked_scatter"
    " diagonal_copy rot90 block_diag scatter_reduce take put index_reduce diagonal_scatter as_strided_scatter max_unpool2d"
    " max_unpool3d reflection_pad3d replication_pad3d"
)
"""Copies and rearrangements."""

COPIES = _names("clone copy _to_copy cat stack")
"""Of these, what only copies: all that tensors need that are returned as they came."""

POLYNOMIALS = _names(
    "special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v"
    " special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he special_laguerre_polynomial_l"
    " special_legendre_polynomial_p"
)
"""Orthogonal polynomials, which take a step for each degree."""

POINT = POLYNOMIALS | _names(
    "abs acos acosh add addcdiv addcmul addr asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or"
    " bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min complex copysign cos cosh digamma div elu eq erf erfc"
    " erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod frac ge gelu glu gt hardshrink hardsigmoid hardswish hardtanh"
    " heaviside hypot isfinite isinf isnan le leaky_relu lerp lgamma log log10 log1p log2 log_sigmoid_forward logaddexp"
    " logaddexp2 logical_and logical_not logical_or logical_xor logit lt maximum minimum mish mul nan_to_num ne neg polar pow"
    " prelu _prelu_kernel reciprocal relu relu6 remainder round rsqrt rsub sgn sigmoid sign signbit silu sin sinc sinh softplus"
    " softshrink sqrt square sub tan tanh threshold trunc xlogy angle conj_physical _conj_physical deg2rad rad2deg frexp gcd"
    " lcm i0 igamma igammac ldexp mvlgamma nextafter polygamma __lshift__ __rshift__ special_airy_ai special_bessel_j0"
    " special_bessel_j1 special_bessel_y0 special_bessel_y1 special_entr special_erfcx special_i0e special_i1 special_i1e"
    " special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0"
    " special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1"
    " special_spherical_bessel_j0 special_xlog1py special_zeta"
)
"""Element by element."""

REDUCE = _names(
    "all any amax amin aminmax argmax argmin cumprod cumsum logcumsumexp logsumexp max mean median min norm"
    " linalg_vector_norm prod std std_mean sum var var_mean _log_softmax _softmax _safe_softmax nansum count_nonzero"
    " native_batch_norm cudnn_batch_norm native_group_norm native_layer_norm _fused_rms_norm rms_norm"
    " avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d"
    " max_pool2d_with_indices max_pool3d_with_indices upsample_nearest1d upsample_nearest2d upsample_nearest3d"
    " _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d"
    " _cdist_forward mse_loss smooth_l1_loss huber_loss soft_margin_loss binary_cross_entropy binary_cross_entropy_with_logits"
    " nll_loss_forward nll_loss2d_forward cummax cummin kthvalue trace linalg_cross bucketize searchsorted histc"
    " affine_grid_generator _weight_norm_interface"
    " upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d upsample_linear1d grid_sampler_2d"
    " _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention"
    " _embedding_bag _embedding_bag_forward_only _pdist_forward dist nanmedian renorm grid_sampler_3d multi_margin_loss"
    " multilabel_margin_loss_forward _upsample_bilinear2d_aa _upsample_bicubic2d_aa"
)
"""Reductions, normalisations and pools."""

ATTENTION = _names("_scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention")
DISTANCES = _names("_cdist_forward _pdist_forward")
"""Of these, what compares each row with each other row: as much arithmetic as a product of matrices."""

UNFUSED = MOVE | POINT | REDUCE
"""Allowed, and counted: work that a kernel could have included."""

ALLOWED = LIBRARY | FILL | UNFUSED

FACTORISE = _names(
    "cholesky linalg_cholesky linalg_cholesky_ex cholesky_inverse cholesky_solve inverse linalg_inv linalg_inv_ex linalg_pinv"
    " linalg_solve _linalg_solve_ex linalg_solve_ex linalg_solve_triangular triangular_solve linalg_lstsq linalg_lu lu_unpack"
    " linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve _lu_with_info lu_solve linalg_ldl_factor linalg_ldl_factor_ex"
    " linalg_ldl_solve linalg_qr geqrf orgqr ormqr linalg_householder_product _linalg_svd linalg_svd linalg_svdvals svd"
    " _linalg_eigh linalg_eigh linalg_eigvalsh linalg_eig linalg_eigvals _linalg_eigvals _linalg_det linalg_det"
    " _linalg_slogdet linalg_slogdet"
)
"""Factorisations and what is computed by them: their libraries may wait for the host, and then no CUDA graph can hold them."""

WAIT = _names(
    "_local_scalar_dense item equal is_nonzero nonzero nonzero_static argwhere unique_dim _unique _unique2 unique_consecutive"
    " unique_dim_consecutive masked_select bincount histogram _histogramdd_bin_edges mode isin segment_reduce linalg_matrix_exp"
    " matrix_exp _ctc_loss _cudnn_ctc_loss embedding_renorm _to_sparse to_sparse"
)
"""On a GPU, these bring numbers to the host and wait for them, or make tensors whose shapes depend on numbers."""


SELECTS = _names("where masked_fill tril triu")
"""What these choose elements from need not be read where they choose another."""

BAGS = _names("_embedding_bag _embedding_bag_forward_only")
"""Sums, means or maxima of a table's rows. What they return besides has another shape on each device, so plans leave it out."""

GATHERS = BAGS | _names(
    "embedding index index_select gather take nll_loss_forward nll_loss2d_forward grid_sampler_2d grid_sampler_3d"
)
"""Operations that read of their first operand only what their indices ask for: perhaps little of it, perhaps all."""

CUTS = _names("constant_pad_nd im2col")
"""Copies that may leave out part of their first operand: beyond a negative padding, or between windows."""

SHAPE_ALONE = frozenset(["zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"])
"""Operations whose result depends on their operand's shape and dtype, and on no element."""


_RESIZED = {"nearest": 1, "linear": 2, "bilinear": 2, "trilinear": 2, "bicubic": 4}
"""What an interpolation reads along each axis for each element it makes."""


def window(op: str, args: Sequence[object]) -> tuple[int, ...]:
    """What an operation reads along each of the last axes of its first operand for each element it makes: a convolution that is
    not transposed, a pool, or an interpolation that does not smooth. () where that is not known, or all of it."""
    name = base_name(op)
    if name == "convolution" and args[6] is False:
        return tuple(getattr(args[1], "shape", ()))[2:]
    axes = next((int(digit) for digit in "123" if f"{digit}d" in name), 0)
    if "pool" in name and not name.startswith(("adaptive", "_adaptive", "fractional", "max_unpool")) and len(args) > 1:
        sides = args[1] if isinstance(args[1], list | tuple) else (args[1],)
        whole = tuple(side for side in sides if isinstance(side, int))
        return whole * axes if len(whole) == 1 else whole if len(whole) == axes else ()
    kind = name.removeprefix("_").removeprefix("upsample_").rstrip("123d").removesuffix("_exact")
    return (_RESIZED[kind],) * axes if "upsample_" in name and kind in _RESIZED else ()


def base_name(op: str) -> str:
    """`aten.add_.Tensor` → `add`; the empty string for an op of another namespace."""
    namespace, _, rest = op.partition(".")
    if namespace != "aten":
        return ""
    name = rest.partition(".")[0]
    return name.rstrip("_") if name not in ALLOWED else name


@functools.lru_cache(maxsize=4096)
def mutated(op: str) -> frozenset[int | str] | None:
    """Arguments that an op writes to, by position and by name, from torch's schema; None if torch has no such op."""
    overload = _overload(op)
    if overload is None:
        return None
    found: set[int | str] = set()
    for position, argument in enumerate(overload._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found |= {argument.name} if argument.kwarg_only else {argument.name, position}
    return frozenset(found)


def mutated_by_call(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> frozenset[int | str]:
    """`mutated`, and the running statistics that a batch norm writes in training mode, of which its schema says nothing."""
    found = mutated(op) or frozenset()
    if base_name(op) in ("native_batch_norm", "cudnn_batch_norm"):
        training = args[5] if len(args) > 5 else kwargs.get("training")
        return found if training is False else found | {3, 4, "running_mean", "running_var"}
    return found


@functools.lru_cache(maxsize=1024)
def argument_names(op: str) -> tuple[str, ...]:
    """The names of an op's arguments, in order; none if torch has no such op."""
    overload = _overload(op)
    return tuple(argument.name for argument in overload._schema.arguments) if overload is not None else ()


def _overload(op: str) -> Any:
    """torch's operator of that name; None for a name that stands for anything else (`aten.mm.__class__`)."""
    import torch

    parts = op.split(".")
    if len(parts) != 3 or parts[0] != "aten" or not all(part.isidentifier() for part in parts):
        return None
    try:
        found = getattr(getattr(torch.ops.aten, parts[1]), parts[2])
    except (AttributeError, RuntimeError):
        return None
    return found if isinstance(found, torch._ops.OpOverload) else None
