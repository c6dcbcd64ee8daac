"""What every vocabulary kernel does with one row's sums: scalars in, scalars out.

A row is summed in base 2 relative to a reference: e_v = 2^(z_v * scale + c) with scale = log2(e) / temperature, and
other and moment are the sums of e_v and of e_v (z_v * scale + c) over v != a.
"""

# Triton's language is not Python's: pyright cannot follow it.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false, reportIndexIssue=false

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
# Where the others outweigh the action by more than this (or by NaN), a row is summed again relative to its maximum: exponents
# so far above the action's lose the digits of the entropy, long before they leave float32.
MOST_ODDS = tl.constexpr(1e12)
LOWEST = tl.constexpr(-150.0)  # 2^-150 is 0 in float32; keeps 0 * -inf out of the moment


@triton.jit
def at_least_lowest(y):
    """max(y, LOWEST); NaN stays NaN, so that a broken logit shows in its row's loss."""
    return tl.maximum(y, LOWEST, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def row_outputs(y_a, other, moment):
    """(logp, entropy, -log2 of the row's sum) from the action's exponent y_a = z_a * scale + c and the row's sums."""
    e_a = tl.exp2(y_a)
    total = other + e_a
    moment += tl.where(e_a > 0, e_a * y_a, 0.0)
    odds = other / e_a
    near = 1 + odds  # log1p(odds), exact where 1 + odds rounds
    log1p = tl.where(near == 1, odds, tl.log(near) * odds / tl.where(near == 1, 1.0, near - 1))
    logp = tl.where(e_a > 1 / MOST_ODDS, -log1p, (y_a - tl.log2(total)) * LN2)
    # H = ln(total) - mean y; as p_a -> 1 both vanish, and only what is relative to the action keeps their digits.
    mean = moment / total
    entropy = tl.where(odds < 1, LN2 * (y_a - mean) - logp, tl.log(total) - LN2 * mean)
    return logp, entropy, -tl.log2(total)


@triton.jit
def one_minus_exp(x):
    """1 - exp(x) for x <= 0, accurate as x -> 0."""
    return tl.where(x > -0.02, -x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4))), 1 - tl.exp(x))


@triton.jit
def gradient_coefficients(g, h, logp, entropy, inverse_temperature):
    """(constant, slope, at_action): dL/dz_v = p_v (constant + slope * log2 p_v), but at_action for v = a."""
    p_a = tl.exp(logp)
    through_entropy = tl.where(p_a > 0, h * p_a * (logp + entropy), 0.0)
    at_action = (g * one_minus_exp(logp) - through_entropy) * inverse_temperature
    return (-g - h * entropy) * inverse_temperature, -h * LN2 * inverse_temperature, at_action
