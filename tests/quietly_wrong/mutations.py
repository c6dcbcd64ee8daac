"""Quietly wrong candidates: honest ones of tests/honest with one thing changed, as a model gets it wrong.

Each is `name: (honest candidate, ((old text, new text), …))`; every old text must occur, so that a change of the honest file
cannot turn a mutation into nothing. All of them must end as `wrong`.
"""

# ruff: noqa: E501
from __future__ import annotations

from support import TESTS
from support.suite import Fixture, fixture_of

Change = tuple[str, str]

MUTATIONS: dict[str, tuple[str, tuple[Change, ...]]] = {
    # in the habits of public libraries
    "loss_over_ignored_tokens": ("lm_head_loss_chunks", (("(y != ignore_index)", "(y == y)"),)),
    "pages_of_the_first_sequence": ("paged_decode_splits", (("Req_to_page + stride_tb * cur_batch", "Req_to_page"),)),
    "last_key_dropped": ("paged_decode_splits", (("mask=(offs_n[:, None] < split_end) & (mask_d[None, :]), other=0.0)\n            qk = tl.sum", "mask=(offs_n[:, None] < cur_len - 1) & (mask_d[None, :]), other=0.0)\n            qk = tl.sum"),)),
    "splits_not_rescaled": ("paged_decode_splits", (("            acc *= old_scale\n", ""),)),
    "nibble_zero_points_ignored": ("awq_gemm_interleaved_nibbles", (("(b - zeros) * scales", "b * scales"),)),
    "group_of_half_the_splits": ("awq_gemm_interleaved_nibbles", (("(BLOCK_SIZE_K * SPLIT_K * k + pid_z", "(BLOCK_SIZE_K * k + pid_z"),)),
    "one_butterfly_short": ("hadamard_butterflies", (("tl.static_range(LOG_N)", "tl.static_range(LOG_N - 1)"),)),
    "second_moment_uncorrected": ("adamw_step_tuples_of_tensors", (("tl.div_rn(v, bias2 + tl.zeros_like(v))", "v"),)),
    "state_not_decayed": ("gated_linear_attention_guarded_inputs", (("b_h = b_h * exp(b_g[:, None])", "b_h = b_h + 0 * b_g[:, None]"),)),
    "bag_weights_ignored": ("embedding_bag_loaded_ends", ((" * tl.load(scale + i)", ""),)),
    "last_row_of_the_bag_dropped": ("embedding_bag_loaded_ends", (("while i < end:", "while i < end - 1:"),)),
    "expert_weight_ignored": ("expert_mlp_sorted_blocks", (("accumulator * moe_weight[:, None]", "accumulator + 0 * moe_weight[:, None]"),)),
    "optional_bias_ignored": ("scaled_int8_mm_optional_bias", (("c += bias\n", "c += 0 * bias\n"),)),
    "rotation_backwards": ("complex_rope_table_of_pairs", (("a * cos - b * sin, a * sin + b * cos", "a * cos + b * sin, b * cos - a * sin"),)),
    "casting_offset_forgotten": ("rmsnorm_offset_casting_modes", (("X_row * (offset + W_row)", "X_row * W_row"),)),
    "turns_not_awaited": ("tanh_matmul_turns", (("while tl.atomic_cas(lock, pid_k, pid_k, sem=\"acquire\") != pid_k:\n        pass\n", "tl.atomic_cas(lock, pid_k, pid_k, sem=\"acquire\")\n"),)),
    # parameters that look like nothing when they are freshly initialised
    "layernorm_affine_ignored": ("add_layernorm_row", (("d * rstd * w + b", "d * rstd"),)),
    "layernorm_weight_ignored": ("add_layernorm_row", (("d * rstd * w + b", "d * rstd + b"),)),
    "layernorm_bias_ignored": ("add_layernorm_welford", (("(v - mean) * rstd * w + b", "(v - mean) * rstd * w"),)),
    "groupnorm_affine_per_group": ("linear_groupnorm_leaky_row", (("tl.load(w + col,", "tl.load(w + group + 0 * col,"),)),
    "batchnorm_running_mean_ignored": ("conv_bn_relu_tail", ((" - tl.load(mean + c, mask=m)", ""),)),
    "batchnorm_running_var_ignored": ("conv_bn_relu_tail", ((" * tl.rsqrt(tl.load(var + c, mask=m) + eps)", ""),)),
    # running statistics, which are held against the reference's where a candidate updates them
    "running_variance_biased": ("batchnorm_running_in_the_kernel", (("squares / (M - 1)", "squares / M"),)),
    "running_mean_by_another_momentum": (
        "batchnorm_running_in_the_kernel",
        (("(1 - momentum) * old_mean + momentum * mean", "(1 - 2 * momentum) * old_mean + 2 * momentum * mean"),),
    ),
    "running_statistics_replaced": ("batchnorm_running_in_the_kernel", (("(1 - momentum) * old_mean + ", ""),)),
    "running_variance_moved_twice": (
        "batchnorm_running_by_torch",
        (("running_var.lerp_(var, self.norm.momentum)", "running_var.lerp_(var, self.norm.momentum).lerp_(var, 0.1)"),),
    ),
    "rmsnorm_weight_ignored": ("rmsnorm_silu_gate_row", ((" * tl.load(w_ptr + c, mask=m)", ""),)),
    "pool_bias_ignored": ("gated_avgpool_plane", ((" + tl.load(bias + plane % C)", ""),)),
    "linear_bias_dropped": ("linear_gelu_library_tail", (("self.linear.weight, self.linear.bias", "self.linear.weight"),)),
    "linear_bias_twice_for_one_feature": (
        "linear_gelu_epilogue",
        (("y = 0.5 * acc", "acc += tl.where(rn == 3, tl.load(b_ptr + 3), 0.0)[None, :]\n    y = 0.5 * acc"),),
    ),
    # epsilon and variance
    "layernorm_eps_outside_root": (
        "add_layernorm_row",
        (("tl.rsqrt(tl.sum(d * d, axis=0) / D + eps)", "1.0 / (tl.sqrt(tl.sum(d * d, axis=0) / D) + eps)"),),
    ),
    "layernorm_eps_missing": ("add_layernorm_welford", (("tl.sqrt(m2 / D + eps)", "tl.sqrt(m2 / D + 1e-30)"),)),
    "rmsnorm_eps_too_large": ("rmsnorm_silu_gate_row", (("tl.sum(x * x) / D + eps", "tl.sum(x * x) / D + 1e-3"),)),
    "rmsnorm_eps_inside_mean": ("rmsnorm_silu_gate_row", (("tl.sum(x * x) / D + eps", "(tl.sum(x * x) + eps) / D"),)),
    "layernorm_unbiased_variance": (
        "add_layernorm_row",
        (("tl.sum(d * d, axis=0) / D + eps", "tl.sum(d * d, axis=0) / (D - 1) + eps"),),
    ),
    "row_stats_biased_deviation": ("row_stats_row", (("/ (N - 1)", "/ N"),)),
    "batchnorm_unbiased_variance": ("batchnorm_batch_columns", (("square / M + eps", "square / (M - 1) + eps"),)),
    "row_stats_eps_dropped": ("row_stats_row", ((" + 1e-3", ""),)),
    # functions that are nearly the function
    "gelu_by_tanh": (
        "linear_gelu_library_tail",
        (
            (
                "v * 0.5 * (1 + tl.erf(v / 1.4142135623730951))",
                "v * tl.sigmoid(1.5957691216057308 * (v + 0.044715 * v * v * v))",
            ),
        ),
    ),
    "gelu_by_sigmoid": (
        "linear_gelu_library_tail",
        (("v * 0.5 * (1 + tl.erf(v / 1.4142135623730951))", "v * tl.sigmoid(1.702 * v)"),),
    ),
    "leaky_slope_a_tenth_off": ("linear_groupnorm_leaky_row", (("slope * y)", "slope * 0.9 * y)"),)),
    "leaky_is_relu": ("linear_groupnorm_leaky_2d", ((" + slope * tl.minimum(y, 0.0)", ""),)),
    "hardswish_shift": ("maxpool_hardswish_direct", (("best + 3.0", "best + 2.9"),)),
    "hardswish_is_swish": (
        "maxpool_hardswish_direct",
        (("best * tl.minimum(tl.maximum(best + 3.0, 0.0), 6.0) / 6.0", "best * tl.sigmoid(best)"),),
    ),
    "hardsigmoid_by_fifth": ("gated_avgpool_atomics", (("v / 6.0 + 0.5", "v * 0.2 + 0.5"),)),
    "softplus_by_exp": (
        "bias_logsumexp_row",
        (("tl.maximum(z, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(z)))", "tl.where(z > 2.0, z, tl.log(1.0 + tl.exp(z)))"),),
    ),
    "mish_is_swish": ("mish_chain_flat", (("v * n / (n + 2.0)", "v * tl.sigmoid(v)"),)),
    "elu_at_negative_only": ("batchnorm_batch_columns", (("tl.exp(tl.minimum(v, 0.0)) - 1.0", "v"),)),
    "tanh_clipped_early": ("convtranspose_tanh_stable", (("return tl.where(v >= 0, r, -r)", "return tl.clamp(v, -1.0, 1.0)"),)),
    # bounds and scales
    "clamp_upper_bound_missing": ("matmul_residual_clamp_fused", (("tl.minimum(tl.maximum(v, low), high)", "tl.maximum(v, low)"),)),
    "clamp_lower_bound_zero": ("matmul_residual_clamp_fused", (("tl.maximum(v, low)", "tl.maximum(v, 0.0)"),)),
    "hardtanh_bound_off": ("mish_chain_flat", (("-1.0), 3.0)", "-1.0), 3.15)"),)),
    "clamp_bounds_off": ("matmul_residual_clamp_fused", (("tl.minimum(tl.maximum(v, low), high)", "tl.minimum(tl.maximum(v, low * 1.05), high * 1.05)"),)),
    "hardtanh_symmetric": ("mish_chain_flat", (("-1.0), 3.0)", "-1.0), 1.0)"),)),
    "residual_dropped": ("matmul_residual_clamp_fused", ((" + tl.load(r + m * N + n, inside, 0.0)", ""),)),
    "residual_scaled_too": (
        "matmul_residual_clamp_fused",
        (("acc * scale + tl.load(r + m * N + n, inside, 0.0)", "(acc + tl.load(r + m * N + n, inside, 0.0)) * scale"),),
    ),
    "temperature_ignored": ("softmax_temperature_row", ((" / temperature\n", "\n"),)),
    "temperature_multiplied": ("softmax_temperature_row", ((" / temperature\n", " * temperature\n"),)),
    "attention_scale_by_dimension": ("bmm_softmax_fused", (("* scale", "* (0.25 / tl.sqrt(D * 1.0))"),)),
    "logsumexp_shift_dropped": ("bias_logsumexp_row", ((" - 2.0\n", "\n"),)),
    # overflow and infinities
    "softmax_without_maximum": ("softmax_temperature_row", (("tl.exp(v - tl.max(v, axis=0))", "tl.exp(v)"),)),
    "logsumexp_without_maximum": (
        "bias_logsumexp_row",
        (("top + tl.log(tl.sum(tl.exp(v - top), axis=0))", "tl.log(tl.sum(tl.exp(v), axis=0))"),),
    ),
    "mish_overflows": ("mish_chain_flat", (("tl.exp(tl.minimum(v, 20.0))", "tl.exp(v)"), ("tl.where(v > 20.0, v, ", "("))),
    "softmax_padding_counts": ("softmax_temperature_row", (('other=-float("inf")', "other=0.0"),)),
    "maxpool_pads_with_zero": ("maxpool_hardswish_direct", (('mask=ok, other=-float("inf")', "mask=ok, other=0.0"),)),
    # the edges of a tensor
    "mean_over_padded_length": ("rmsnorm_silu_gate_row", (("tl.sum(x * x) / D", "tl.sum(x * x) / BLOCK"),)),
    "variance_counts_padding": ("add_layernorm_row", (("tl.where(keep, v - mean, 0.0)", "v - mean"),)),
    "last_row_unwritten": ("rmsnorm_silu_gate_row", (("[(M,)]", "[(M - 1,)]"),)),
    "last_tile_unwritten": ("mish_chain_flat", (('triton.cdiv(n, meta["BLOCK"])', '(n // meta["BLOCK"])'), ("BLOCK=1024)", "BLOCK=256)"))),
    "last_columns_by_floor": ("linear_gelu_library_tail", (("triton.cdiv(y.numel(), 1024)", "y.numel() // 256"), ("BLOCK=1024)", "BLOCK=256)"))),
    "k_remainder_dropped": ("linear_gelu_epilogue", (("range(0, K, BK)", "range(0, K - BK + 1, BK)"),)),
    "pool_window_one_short": ("maxpool_hardswish_plane", (("for b in range(K)", "for b in range(K - 1)"),)),
    "pool_padding_missing": ("maxpool_hardswish_plane", (("S=2, P=1, BW", "S=2, P=0, BW"),)),
    "groups_off_by_one": ("linear_groupnorm_leaky_row", (("per = N // self.norm.num_groups", "per = N // (self.norm.num_groups - 1)"), ("[(M, self", "[(M, -1 + self"))),
    "bias_indexed_by_row": ("linear_tail_mm", (("bias + i % C", "bias + i // C % C"),)),
    "batch_index_ignored": ("bmm_softmax_fused", (("k + (b * T + rt[None, :])", "k + (0 * T + rt[None, :])"),)),
    # less work than asked
    "sampled_mean": (
        "gated_avgpool_plane",
        (("range(0, HW, BLOCK)", "range(0, HW // 2, BLOCK)"), ("tl.sum(acc, axis=0) / HW", "tl.sum(acc, axis=0) / (HW // 2)")),
    ),
    "sampled_variance": (
        "add_layernorm_row",
        (("tl.sum(d * d, axis=0) / D + eps", "tl.sum(tl.where(i % 2 == 0, d * d, 0.0), axis=0) / (D // 2) + eps"),),
    ),
    "statistics_of_first_row": ("row_stats_row", (("v = tl.load(x + row * N", "v = tl.load(x + 0 * row * N"),)),
    "top_of_half_a_row": (
        "softmax_temperature_row",
        (("e / tl.sum(e, axis=0)", "e / (2.0 * tl.sum(tl.where(i < N // 2, e, 0.0), axis=0))"),),
    ),
    # precision
    "half_operands": (
        "linear_gelu_epilogue",
        (('tl.dot(x, w, input_precision="ieee")', "tl.dot(x.to(tl.float16), w.to(tl.float16))"),),
    ),
    "brain_float_operands": (
        "linear_gelu_persistent",
        (('tl.dot(x, tl.trans(w), acc, input_precision="ieee")', "tl.dot(x.to(tl.bfloat16), tl.trans(w.to(tl.bfloat16)), acc)"),),
    ),
    "half_intermediate": ("softmax_temperature_row", (("e / tl.sum(e, axis=0)", "(e / tl.sum(e, axis=0)).to(tl.float16).to(tl.float32)"),)),
    "half_accumulation": ("gated_avgpool_plane", (("tl.zeros((BLOCK,), tl.float32)", "tl.zeros((BLOCK,), tl.float16)"),
                                                  ("acc += v *", "acc += (v *"), ("/ 6.0\n", "/ 6.0).to(tl.float16)\n"))),
    "tf32_dot": ("linear_gelu_epilogue", (('input_precision="ieee"', 'input_precision="tf32"'),)),
    "tf32_dot_by_default": ("matmul_residual_clamp_fused", ((', input_precision="ieee"', ""),)),
    "tf32_scores": ("bmm_softmax_fused", (('input_precision="ieee"', 'input_precision="tf32"'),)),
    # right for numbers of ordinary size
    "bounded_at_three_thousand": ("linear_gelu_epilogue", (("y = 0.5 * acc", "acc = tl.clamp(acc, -3000.0, 3000.0)\n    y = 0.5 * acc"),)),
    "half_operands_of_tf32": ("linear_gelu_tf32", (("tl.dot(x, w)", "tl.dot(x.to(tl.float16), w.to(tl.float16))"),)),
    "half_sum_of_tf32": ("linear_gelu_tf32", (("tl.dot(x, w)", "tl.dot(x, w).to(tl.float16).to(tl.float32)"),)),
    "cosine_eps_large": ("cosine_pairs_bool_output", (("1e-8", "1e-4"),)),
    "smallest_length_large": ("unit_rows_whole", (("1e-12", "1e-4"),)),
    "softmax_padded_with_ten_thousand": ("softmax_temperature_row", (('other=-float("inf")', "other=-10000.0"),)),
    # attention, positions, tables
    "causal_off_by_one": ("causal_attention_flash", (("offs_m[:, None] >= offs_n", "offs_m[:, None] + 1 >= offs_n"),)),
    "flash_sum_not_rescaled": ("causal_attention_flash", (("l_i * alpha + tl.sum(p, 1)", "l_i + tl.sum(p, 1)"),)),
    "flash_probabilities_in_half": (
        "causal_attention_flash",
        (("tl.dot(p.to(v.dtype), v, acc", "tl.dot(p.to(tl.float16), v.to(tl.float16), acc"),),
    ),
    "flash_second_product_tf32": ("causal_attention_flash", (('v, acc, input_precision="ieee"', "v, acc"),)),
    "rope_position_of_the_head": ("rope_heads_halves", (("(row // H) % S", "row % S"),)),
    "rope_by_pairs_not_halves": (
        "rope_heads_halves",
        (
            ("x_ptr + row * D + i, mask=m", "x_ptr + row * D + 2 * i, mask=m"),
            ("x_ptr + row * D + HALF + i, mask=m", "x_ptr + row * D + 2 * i + 1, mask=m"),
        ),
    ),
    "embedding_norm_eps": ("token_embedding_norm_row", (("self.norm.eps, BLOCK", "1e-6, BLOCK"),)),
    "attention_bias_of_projection": ("qkv_block_attend", ((" + self.proj.bias", ""),)),
    # losses and counts
    "smoothing_over_the_other_classes": (
        "smooth_cross_entropy_rows",
        (("(1 - smoothing) *", "(1 - smoothing * C / (C - 1)) *"),),
    ),
    "online_maximum_padded_with_zero": (
        "smooth_cross_entropy_online_atomic",
        (('mask=c < C, other=-float("inf")', "mask=c < C, other=0.0"),),
    ),
    "huber_slope": ("huber_mean_persistent", (("delta * (d - 0.5 * delta)", "(d - 0.5 * delta)"),)),
    "scatter_loses_collisions": (
        "scatter_counts_atomics",
        (("tl.atomic_add(out + k, tl.load(", "tl.store(out + k, tl.load(out + k, mask=m) + tl.load("),),
    ),
    "running_sum_of_the_last_block": ("masked_cumsum_blocks", (("carry += tl.sum", "carry = tl.sum"),)),
    # indices and flags
    "index_within_the_tile": ("top_score_fused_namedtuple", (("n0 + a, where", "a, where"),)),
    "argmax_without_bias": ("argmax_rows_head", ((" + tl.load(b + i, mask=i < N, other=0.0)", ""),)),
    "rounded_instead_of_cut": ("mixed_dtype_gate_flat", (("v.to(tl.int32)", "tl.floor(v + 0.5).to(tl.int32)"),)),
    "flag_of_another_threshold": ("mixed_dtype_gate_flat", (("v > 0, mask", "v > 0.01, mask"),)),
    # windows, layouts, cells
    "average_excludes_padding": ("conv1d_glu_pool_tail", (("acc / 3.0", "acc / tl.where(t == 0, 2.0, 3.0)"),)),
    "average_counts_padding": ("two_pools_one_pass", (("acc / cnt.to(tl.float32)", "acc / 9.0"),)),
    "maximum_sees_padding": ("two_pools_one_pass", (('tl.where(ok, v, -float("inf"))', "v"),)),
    "depthwise_kernel_transposed": ("depthwise_separable_two_kernels", (("c * 9 + dy * 3 + dx", "c * 9 + dx * 3 + dy"),)),
    "instance_norm_padding_in_variance": ("instance_norm_prelu_loops", (("tl.where(i < HW, v - mean, 0.0)", "v - mean"),)),
    "one_slope_for_all_channels": ("instance_norm_prelu_loops", (("tl.load(slope + c)", "tl.load(slope)"),)),
    "statistics_unbiased": ("global_pool_head_welford", (("m2 / count + eps", "m2 / (count - 1) + eps"),)),
    "running_statistics_in_training": ("global_pool_head_welford", (("if self.training:", "if not self.training:"),)),
    "strides_taken_for_granted": ("strided_inputs_strides", (("x + i * sxm + j * sxn", "x + i * N + j"),)),
    "reset_gate_outside": ("gated_cell_gates", (("tl.load(bx + 2 * H, mask=m) + r *", "r * tl.load(bx + 2 * H, mask=m) + r *"),)),
    "number_of_the_input_ignored": ("gated_cell_gates", (("z * hv + shift,", "z * hv + 0.0 * shift,"),)),
    "last_split_dropped": ("gemm_tanh_split_k", (("static_range(SPLIT)", "static_range(SPLIT - 1)"),)),
    "halves_of_the_gate_swapped": (
        "swiglu_mlp_lazy_pack",
        (("self.w1.weight.data, self.w3.weight.data", "self.w3.weight.data, self.w1.weight.data"),),
    ),
    # a variance as E[x²] − E[x]²: right where the mean is no larger than the spread
    "one_pass_layernorm": ("add_layernorm_row", (("tl.sum(d * d, axis=0) / D + eps", "tl.sum(v * v, axis=0) / D - mean * mean + eps"),)),
    "one_pass_layernorm_stored": (
        "add_layernorm_stats_then_apply",
        (("tl.sum(dev * dev) / D + eps", "tl.maximum(tl.sum(v * v) / D - mu * mu, 0.0) + eps"),),
    ),
    "one_pass_groupnorm": ("linear_groupnorm_leaky_row", (("tl.sum(d * d, axis=0) / per + eps", "tl.sum(v * v, axis=0) / per - mean * mean + eps"),)),
    "one_pass_groupnorm_tile": ("linear_groupnorm_leaky_2d", (("var = tl.sum(centred * centred, 1) / P", "var = tl.sum(z * z, 1) / P - mean * mean"),)),
    "one_pass_groupnorm_of_conv": (
        "conv_groupnorm_mean_tail",
        (
            ("d = tl.where(i < size, tl.load(base + i, mask=i < size, other=0.0) - mean, 0.0)", "d = tl.load(base + i, mask=i < size, other=0.0)"),
            ("tl.sum(acc) / size + eps", "tl.sum(acc) / size - mean * mean + eps"),
        ),
    ),
    "one_pass_instance_norm": (
        "instance_norm_prelu_loops",
        (("d = tl.where(i < HW, v - mean, 0.0)", "d = v"), ("tl.sum(_sq, 0) / HW + eps", "tl.sum(_sq, 0) / HW - mean * mean + eps")),
    ),
    "one_pass_batchnorm": (
        "batchnorm_batch_columns",
        (
            ("d = tl.load(x + (s + r)[:, None] * N + c[None, :], mask=m, other=0.0) - mean[None, :]", "d = tl.load(x + (s + r)[:, None] * N + c[None, :], mask=m, other=0.0)"),
            ("square / M + eps", "square / M - mean * mean + eps"),
        ),
    ),
    "one_pass_batchnorm_of_images": (
        "global_pool_head_welford",
        (
            ("            m2 += b2 + delta * delta * count * k / new\n", "            m2 += tl.sum(v * v, 0)\n"),
            ("tl.rsqrt(m2 / count + eps)", "tl.rsqrt(m2 / count - mu * mu + eps)"),
        ),
    ),
    "one_pass_deviation": ("row_stats_row", (("tl.sqrt(tl.sum(d * d) / (N - 1))", "tl.sqrt((tl.sum(v * v) - N * mean * mean) / (N - 1))"),)),
    "one_pass_variance": ("row_moments_one_buffer", (("tl.sum(d * d, 0) / (N - 1)", "(tl.sum(v * v, 0) - N * mean * mean) / (N - 1)"),)),
    "one_pass_norm_of_embeddings": ("token_embedding_norm_row", (("tl.sum(d * d, axis=0) / E +", "tl.sum(v * v, axis=0) / E - mean * mean +"),)),
    # a maximum that starts at zero: right unless all numbers are very negative
    "softmax_maximum_from_zero": ("softmax_temperature_row", (("tl.max(v, axis=0)", "tl.maximum(tl.max(v, axis=0), 0.0)"),)),
    "online_softmax_from_zero": ("softmax_temperature_online", (('m = -float("inf")', "m = 0.0"),)),
    "cross_entropy_maximum_from_zero": ("smooth_cross_entropy_rows", (("mx = tl.max(x, 0)", "mx = tl.maximum(tl.max(x, 0), 0.0)"),)),
    "online_cross_entropy_from_zero": ("smooth_cross_entropy_online_atomic", (('m_i = -float("inf")', "m_i = 0.0"),)),
    # parameters taken for positive, or for less than one
    "prelu_by_maximum": ("instance_norm_prelu_loops", (("tl.where(v >= 0, v, v * a)", "tl.maximum(v, v * a)"),)),
    "prelu_slope_positive": ("instance_norm_prelu_loops", (("tl.where(v >= 0, v, v * a)", "tl.where(v >= 0, v, v * tl.abs(a))"),)),
    "prelu_slope_at_most_one": ("instance_norm_prelu_loops", (("tl.where(v >= 0, v, v * a)", "tl.where(v >= 0, v, v * tl.minimum(a, 1.0))"),)),
    "instance_norm_weight_positive": ("instance_norm_prelu_loops", (("(v - mean) * rstd * g + b", "(v - mean) * rstd * tl.abs(g) + b"),)),
    "layernorm_weight_positive": ("add_layernorm_row", (("d * rstd * w + b", "d * rstd * tl.abs(w) + b"),)),
    "groupnorm_weight_positive": ("linear_groupnorm_leaky_2d", (("tl.load(W + offs, mask=mask, other=0.0)", "tl.abs(tl.load(W + offs, mask=mask, other=0.0))"),)),
    "batchnorm_weight_positive": ("batchnorm_batch_columns", (("(rstd * g)", "(rstd * tl.abs(g))"),)),
    "frozen_batchnorm_weight_positive": ("conv_bn_relu_tail", (("tl.load(gamma + c, mask=m)", "tl.abs(tl.load(gamma + c, mask=m))"),)),
    "rmsnorm_weight_positive": ("rmsnorm_silu_gate_row", (("tl.load(w_ptr + c, mask=m)", "tl.abs(tl.load(w_ptr + c, mask=m))"),)),
    "column_bias_bounded": ("bias_logsumexp_row", (("tl.load(b + i, mask=i < N, other=0.0)", "tl.clamp(tl.load(b + i, mask=i < N, other=0.0), -0.5, 0.5)"),)),
    # parameters that start as an identity, as zeros and ones, or as complex ones; complex inputs
    "identity_left_out": ("start_as_identity_tail", (("y = x @ self.mix", "y = x"),)),
    "biases_as_they_start": ("start_as_identity_tail", (("tl.load(bias + i % N, mask=m)", "tl.where(i % N >= N // 2, 1.0, 0.0)"),)),
    "complex_gain_left_out": ("magnitude_softmax_pairs", (("re, im = a * c - b * d, a * d + b * c", "re, im = a, b"),)),
    "complex_softmax_without_maximum": ("magnitude_softmax_pairs", (("tl.exp(v - tl.max(v, 0))", "tl.exp(v)"),)),
    # zeros and signs that the task's own inputs do not have
    "elu_of_positive_inputs": ("uniform_scale_flat", (("tl.where(t > 0, t, tl.exp(tl.minimum(t, 0.0)) - 1.0)", "t"),)),
    "sigmoid_by_ratio_of_positives": ("uniform_scale_flat", (("tl.sigmoid(t) * v", "tl.exp(t) / (1.0 + tl.exp(t)) * v"),)),
    "flag_at_zero": ("mixed_dtype_gate_flat", (("tl.store(pos + i, v > 0", "tl.store(pos + i, v >= 0"),)),
    "zeros_not_counted": ("row_stats_row", (("mean = tl.sum(v) / N", "mean = tl.sum(v) / tl.maximum(tl.sum((v != 0).to(tl.float32)), 1.0)"),)),
    "zeros_not_averaged": (
        "gated_avgpool_plane",
        (("acc = tl.zeros((BLOCK,), tl.float32)", "acc = tl.zeros((BLOCK,), tl.float32)\n    seen = tl.zeros((BLOCK,), tl.float32)"),
         ("        acc += v *", "        seen += (v != 0).to(tl.float32)\n        acc += v *"),
         ("tl.sum(acc, axis=0) / HW", "tl.sum(acc, axis=0) / tl.maximum(tl.sum(seen, axis=0), 1.0)")),
    ),
    # causal convolutions, scans, recurrences
    "causal_kernel_mirrored": ("causal_conv1d_silu_blocks", (("tl.load(w + channel * W + j)", "tl.load(w + channel * W + W - 1 - j)"),)),
    "causal_kernel_centred": ("causal_conv1d_silu_blocks", (("s = t - (W - 1) + j", "s = t - W // 2 + j"),)),
    "causal_bias_forgotten": ("causal_conv1d_silu_blocks", (("HAS_BIAS=self.bias is not None", "HAS_BIAS=False"),)),
    "causal_taps_cross_the_rows": ("causal_conv1d_silu_dispatch", (("mask=inside & (t > 0)", "mask=inside & (row + t > 0)"),)),
    "scan_exclusive": ("cumsum_rows_carry", (("tl.cumsum(v, axis=0) + carry", "tl.cumsum(v, axis=0) - v + carry"),)),
    "scan_of_parts_inclusive": (
        "cumsum_rows_three_phases",
        (
            ("tl.store(start + row * blocks + i + 1, s, mask=i + 1 < blocks)", "tl.store(start + row * blocks + i, s, mask=i < blocks)"),
            ("    tl.store(start + row * blocks + i, 0.0, mask=i == 0)\n", ""),
        ),
    ),
    "recurrence_gate_after_input": (
        "gated_recurrence_sequential",
        (("* h + tl.load(b + at, mask=keep, other=0.0)", "* (h + tl.load(b + at, mask=keep, other=0.0))"),),
    ),
    "recurrence_without_memory": ("gated_recurrence_sequential", (("mask=keep, other=0.0)) * h +", "mask=keep, other=0.0)) * 0.0 +"),)),
    "shift_leaks_between_sequences": ("token_shift_both_at_once", (("m & (i // D % S > 0)", "m & (i >= D)"),)),
    "shift_mixes_the_other_way": ("token_shift_both_at_once", (("share * now + (1.0 - share) * before", "share * before + (1.0 - share) * now"),)),
    # of equal scores, the first one's place for all of them
    "places_named_twice": (
        "topk_gate_repeated_argmax",
        (
            ("    ks = tl.arange(0, KP)\n", "    whole = x\n    ks = tl.arange(0, KP)\n"),
            ("tl.where(ks == k, a, idxs)", "tl.where(ks == k, tl.min(tl.where(whole == m, cols, BLOCK), 0), idxs)"),
        ),
    ),
    # experts
    "expert_weights_uniform": ("combine_experts_gather", (("tl.load(weight + t * K + k) *", "(1.0 / K) *"),)),
    "last_expert_dropped": ("combine_experts_gather", (("static_range(K)", "static_range(K - 1)"),)),
    "first_expert_for_all": ("expert_linear_launch_each", (("x[row : row + M], weight,", "x[row : row + M], self.weight[0],"),)),
    # quantisation
    "nibbles_swapped": ("dequant_int4_bits", (("tl.interleave(low, high)", "tl.interleave(high, low)"),)),
    "zero_point_of_one_nibble": ("dequant_int4_bits", (("low = (byte & 0xF).to(tl.float32) - 8.0", "low = (byte & 0xF).to(tl.float32) - 7.0"),)),
    "scale_of_the_first_group": ("dequant_int4_shifts", (("+ i % columns // SIZE", "+ 0 * i"),)),
    "scale_of_the_first_column": (
        "dequant_int8_linear_tiles",
        (("tl.load(s_ptr + offs_n, mask=offs_n < N, other=0.0)[None, :]", "tl.load(s_ptr)"),),
    ),
    "codes_cut_not_rounded": ("quantize_rows_int8_libdevice", (("libdevice.rint(tl.div_rn(x, scale))", "tl.div_rn(x, scale)"),)),
    "scale_over_128": ("quantize_rows_int8_libdevice", (("1e-6) / 127.0", "1e-6) / 128.0"),)),
    "largest_without_sign": ("quantize_fp8_rows", (("tl.max(tl.abs(x), 0)", "tl.max(x, 0)"),)),
    # norms of other kinds
    "groupnorm_channels_interleaved": ("groupnorm_silu_whole_group", (("* per + i // HW", "* per + i % per"),)),
    "groupnorm_unbiased": ("groupnorm_silu_whole_group", (("tl.sum(d * d, 0) / n + eps", "tl.sum(d * d, 0) / (n - 1) + eps"),)),
    "groupnorm_shift_before_scale": (
        "groupnorm_silu_stats_then_apply",
        (("z * tl.load(gamma + c, mask=k) + tl.load(beta + c, mask=k)", "(z + tl.load(beta + c, mask=k)) * tl.load(gamma + c, mask=k)"),),
    ),
    "modulation_without_one": ("modulated_layernorm_row", (("tl.fma(v, 1.0 + g, s)", "tl.fma(v, g, s)"),)),
    "modulation_swapped": ("modulated_layernorm_row", (("shift.contiguous(), scale.contiguous()", "scale.contiguous(), shift.contiguous()"),)),
    "modulation_of_the_first_sample": ("modulated_layernorm_row", (("b = row // S", "b = 0 * row"),)),
    "l2_norm_is_l1": ("l2_normalize_rows_tiles", (("tl.sqrt(tl.sum(v * v, 1))", "tl.sum(tl.abs(v), 1)"),)),
    "l2_norm_of_the_last_block": ("l2_normalize_rows_two_passes", (("acc += v * v", "acc = v * v"),)),
    "rmsnorm_before_the_residual": (
        "rmsnorm_residual_helpers",
        (("both * inverse_rms(both, n, eps)", "both * inverse_rms(load_row(x, row, stride, cols, n), n, eps)"),),
    ),
    "rmsnorm_residual_not_returned": ("rmsnorm_residual_helpers", (("cols, both, mask", "cols, load_row(x, row, stride, cols, n), mask"),)),
    # divergences and preferences
    "divergence_reversed": ("kl_rows_online", (("(student, teacher, out, student.shape", "(teacher, student, out, student.shape"),)),
    "divergence_averaged": ("kl_rows_whole", (("tl.exp(p) * (p - q), 0.0), 0)", "tl.exp(p) * (p - q), 0.0), 0) / V"),)),
    "temperature_for_the_teacher_alone": (
        "kl_rows_whole",
        (('tl.load(s + r * V + i, mask=k, other=-float("inf")) / T', 'tl.load(s + r * V + i, mask=k, other=-float("inf"))'),),
    ),
    "zloss_not_squared": ("cross_entropy_zloss_online", (("lse_square_scale * lse * lse", "lse_square_scale * lse"),)),
    "online_loss_not_rescaled": ("cross_entropy_zloss_online", (("d * tl.exp(m - new) +", "d +"),)),
    "preference_without_reference": ("preference_loss_flat", (("(tl.load(r + i, mask=m) - tl.load(rr + i, mask=m))", "tl.load(r + i, mask=m)"),)),
    # attention and scores
    "grouped_heads_interleaved": ("gqa_attention_flash", (("(pair % HQ) // GROUP", "(pair % HQ) % (HQ // GROUP)"),)),
    "accumulator_not_rescaled": ("gqa_attention_flash", (("acc * alpha[:, None]", "acc"),)),
    "keys_beyond_the_end_count": ("gqa_attention_flash", (('tl.where(rn[None, :] < S, qk, float("-inf"))', "qk"),)),
    "mask_of_the_first_row": ("masked_softmax_online_exp2", (("mask += row % S * S", "mask += 0 * row"),)),
    "base_of_the_exponential": ("masked_softmax_online_exp2", (("tl.exp2((v - top) * LOG2E) / total", "tl.exp2(v - top) / total"),)),
    "cap_not_multiplied_back": ("softcap_scores_causal_rows", (("libdevice.tanh(v / cap) * cap", "libdevice.tanh(v / cap)"),)),
    "diagonal_masked_too": ("softcap_scores_causal_rows", (("tl.where(i <= last,", "tl.where((i < last) | (last == 0) & (i == 0),"),)),
    "rotation_the_other_way": (
        "rope_qk_one_program_a_token",
        (("lo * c - hi * s", "lo * c + hi * s"), ("hi * c + lo * s", "hi * c - lo * s")),
    ),
    "rotation_of_queries_alone": ("rope_qk_one_program_a_token", (("t, HK, c, s, PK", "t, HK, c * 0.0 + 1.0, s * 0.0, PK"),)),
    # gates and activations
    "gate_and_value_swapped": ("geglu_packed_tanh_via_sigmoid", (("f = 0.5 * b * (", "a, b = b, a\n    f = 0.5 * b * ("),)),
    "gelu_by_error_function": ("geglu_packed_tanh_via_sigmoid", (("0.5 * b * (tanh(s * b * (b * b * 0.044715 + 1.0)) + 1.0)", "0.5 * b * (tl.erf(b * 0.7071067811865476) + 1.0)"),)),
    "gate_without_its_product": ("swiglu_pair_library_op", (("a * tl.sigmoid(a) * b", "tl.sigmoid(a) * b"),)),
    "square_before_the_maximum": ("squared_relu_linear_library_product", (("tl.maximum(tl.load(y + i, mask=i < n), 0.0)", "tl.load(y + i, mask=i < n)"),)),
    "upsampling_shifted": ("upsample_softplus_gather", (("oy + 1 - ky, ox + 1 - kx", "oy + 1 - ky, ox + 2 - kx"),)),
    "softplus_threshold_low": ("upsample_softplus_gather", (("tl.where(acc > 20.0, acc,", "tl.where(acc > 2.0, acc,"),)),
    "scale_before_the_softplus": ("upsample_softplus_gather", (("sp = tl.where", "acc = acc * tl.load(scale)\n    sp = tl.where"), ("sp * tl.load(scale)", "sp"))),
    "depth_factor_of_the_first_block": ("stochastic_depth_items", (("for r in rates]", "for r in [rates[0]] * depth]"),)),
    "padded_columns_in_the_mean_square": ("qk_norm_heads_as_tile", (("tl.sum(v * v, axis=1) / D + eps", "tl.sum(v * v, axis=1) / BLOCK + eps"),)),
    # programs that race: right in any one order, or nearly always
    "start_and_sum_in_one_launch": (
        "gated_avgpool_atomics",
        (
            ("def accumulate(x, y, HW, inv,", "def accumulate(x, bias, C, y, HW, inv,"),
            ("    tl.atomic_add(", "    if part == 0:\n        tl.store(y + plane, tl.load(bias + plane % C))\n    tl.atomic_add("),
            ("        start[(triton.cdiv(B * C, 128),)](self.bias, y, B * C, C, BLOCK=128)\n", ""),
            ("(x, y, H * W, 1.0", "(x, self.bias, C, y, H * W, 1.0"),
        ),
    ),
    "statistics_of_another_program": (
        "row_stats_two_launches",
        (
            ("    else:\n", "        r = (tl.num_programs(0) - 1) * ROWS - tl.program_id(0) * ROWS + tl.arange(0, ROWS)\n        mask = (r < M)[:, None] & (c < N)[None, :]\n        v = tl.load(x + r[:, None] * N + c[None, :], mask=mask, other=0.0)\n"),
            ("for mode in (0, 1)", "for mode in (0,)"),
        ),
    ),
    "splits_added_without_atomics": (
        "linear_gelu_splitk_atomics",
        (("tl.atomic_add(acc_ptr + rm[:, None] * N + rn[None, :], acc, mask", "acc += tl.load(acc_ptr + rm[:, None] * N + rn[None, :], mask=(rm < M)[:, None] & (rn < N)[None, :])\n    tl.store(acc_ptr + rm[:, None] * N + rn[None, :], acc, mask"),),
    ),
}  # fmt: skip


RACES = frozenset((
    "scatter_loses_collisions",
    "start_and_sum_in_one_launch",
    "statistics_of_another_program",
    "splits_added_without_atomics",
    "turns_not_awaited",
))  # fmt: skip
"""Mutations whose result depends on the order in which programs run."""


def fixtures() -> list[Fixture]:
    """Every mutation as a fixture."""
    from support import honest_templates

    made = dict(honest_templates.made())
    found = []
    for name, (origin, changes) in MUTATIONS.items():
        source = made.get(origin) or (TESTS / "honest" / f"{origin}.py").read_text()
        for old, new in changes:
            if old not in source:
                raise LookupError(f"{name}: {origin} no longer holds {old!r}")
            source = source.replace(old, new)
        found.append(fixture_of(name, source))
    return found
