# SPDX-License-Identifier: MIT
"""Terms that change scores, softcap, bias and ALiBi, at any size, and the ends of rows. Read beside parts.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.attention.triton.parts import LN_2, LOG2_E, MINIMUM, round_to, row_pointers, tanh

STEEP = tl.constexpr(8.507059173023462e37)  # 2^126: from there on a score in base 2 grows half as fast as the bias
MOST_SLOPE = tl.constexpr(1.2379400392853803e27)  # 2^90: no product with a distance is infinite


@triton.jit
def plus_bias(scores, bias):
    """Scores in base 2 plus bias · log2 e. No finite bias makes one infinite, so that it hides no key for good.

    The half of the bias, and the rest up to ±2^126: beyond, scores that differ are so far from one another that p is 1
    or 0 however steep the map, and log_sum_exp undoes it. Where the compiler fuses only some uses of a product, p takes
    another rounding than the maximum: 2 to the power of what lies between is infinite or 0.
    """
    bias = bias.to(tl.float32)
    near = tl.maximum(tl.minimum(bias, STEEP), -STEEP)
    return tl.fma(near, LOG2_E - 0.5, tl.fma(bias, 0.5, scores))


@triton.jit
def minus_alibi(scores, slopes, distance):
    """Scores minus slopes · |distance|, fused as plus_bias has it."""
    return tl.fma(-slopes, tl.abs(distance).to(tl.float32), scores)


@triton.jit
def alibi_slopes(slopes):
    """Slopes in base 2, up to ±2^90: times the distance 0 an infinite one would be NaN."""
    return tl.clamp(slopes.to(tl.float32), -MOST_SLOPE, MOST_SLOPE, propagate_nan=tl.PropagateNan.ALL) * LOG2_E


@triton.jit
def sink_score(sink, HAS_BIAS: tl.constexpr):
    """A learned sink in base 2, beside scores of plus_bias as those."""
    if HAS_BIAS:
        return plus_bias(0.0, sink)
    else:
        return sink.to(tl.float32) * LOG2_E


@triton.jit
def log_sum_exp(maximum, total, HAS_BIAS: tl.constexpr):
    """Natural, from the maximum in base 2 and Σ p, −∞ where that is 0. HAS_BIAS: the maximum is from plus_bias."""
    lse = (maximum + tl.log2(total)) * LN_2
    if HAS_BIAS:
        size = tl.minimum((tl.abs(maximum) - STEEP * (LOG2_E - 0.5)) * 2.0, -MINIMUM)
        lse = tl.where(tl.abs(maximum) > STEEP * LOG2_E, tl.where(maximum < 0, -size, size), lse)
    return tl.where(total == 0.0, float("-inf"), lse)


@triton.jit
def bias_of(bias, strides, q_batch, tile, queries, is_row, delta, num_biases, SHAPE: tl.constexpr):
    """The arguments of `adjusted` for a bias. strides: of batch, row, head and key."""
    if SHAPE.IS_QQ_BIAS:  # the queries are the last ones of the keys
        return (bias + queries.to(tl.int64) * strides[1], is_row & (queries < num_biases), strides[3], delta,
                num_biases)
    else:
        return row_pointers(bias, strides, q_batch, tile, SHAPE), is_row, strides[3], delta * 0, num_biases


@triton.jit
def adjusted(scores, keys, positions, adjust, SHAPE: tl.constexpr):
    """Scores in units of log 2 with softcap, bias and ALiBi. adjust: softcap, slopes [M] or None, bias or None.

    bias: pointers [M] of its rows, which of them there are, the stride of keys, the first key, how many there are.
    """
    softcap, slopes, bias = adjust
    if SHAPE.HAS_SOFTCAP:
        scores = tanh(scores / softcap) * softcap
    if bias is not None:
        rows, is_row, key_stride, first_key, num_keys = bias
        columns = keys - first_key
        inside = is_row[:, None] & ((columns >= 0) & (columns < num_keys))[None, :]
        values = tl.load(rows[:, None] + columns.to(tl.int64)[None, :] * key_stride, mask=inside, other=0.0)
        scores = plus_bias(scores, values)
    if slopes is not None:
        scores = minus_alibi(scores, slopes[:, None], positions[:, None] - keys[None, :])
    return scores


@triton.jit
def finish_rows(out_rows, lse_rows, is_row, acc, total, maximum, sinks, value_scale, HEAD_DIM_V: tl.constexpr,
                DV: tl.constexpr, ROUNDING: tl.constexpr, HAS_BIAS: tl.constexpr = False):
    """Stores value_scale · Σ p·v / Σ p and the log-sum-exp of rows: pointers [rows]. total: Σ p.

    maximum: in units of log 2. sinks: one more score for each row, in the denominator only, or None. fp8 saturates.
    HAS_BIAS: of log_sum_exp.
    """
    if sinks is not None:
        new_maximum = tl.maximum(maximum, sinks)
        rescale = tl.exp2(maximum - new_maximum)
        total = total * rescale + tl.exp2(sinks - new_maximum)
        acc = acc * rescale[:, None]
        maximum = new_maximum
    result = acc * tl.where(total == 0.0, 0.0, value_scale / total)[:, None]  # 0: no visible key
    dims = tl.arange(0, DV)
    dtype: tl.constexpr = out_rows.dtype.element_ty
    if dtype.is_fp8():
        limit: tl.constexpr = 448.0 if dtype == tl.float8e4nv else 240.0
        result = tl.where(result == result, tl.minimum(tl.maximum(result, -limit), limit), result)
    tl.store(out_rows[:, None] + dims[None, :], round_to(result, dtype, ROUNDING),
             mask=is_row[:, None] & (dims < HEAD_DIM_V)[None, :])
    if lse_rows is not None:
        tl.store(lse_rows, log_sum_exp(maximum, total, HAS_BIAS), mask=is_row)
