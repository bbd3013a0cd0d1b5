# SPDX-License-Identifier: MIT
"""The functions of torch that batch norm over several GPUs is made of (torch.nn.SyncBatchNorm), which torch has for no
CPU: sums of each channel, and what is done with them to each element. Channels are dimension 1.
"""

from __future__ import annotations

import torch


def _sums(value: torch.Tensor) -> torch.Tensor:
    return value.sum([i for i in range(value.dim()) if i != 1])


def _each(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """[channels] as what broadcasts over `like`."""
    return value.view(1, -1, *[1] * (like.dim() - 2))


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def stats(input: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """torch.batch_norm_stats: [channels] mean and 1 / sqrt(variance + eps), of 16-bit numbers in float32."""
    wide = _wide(input)
    count = max(input.numel() // input.shape[1], 1)
    mean = _sums(wide) / count
    return mean, (_sums((wide - _each(mean, wide)) ** 2) / count + eps).rsqrt()


def gather_stats(input: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, running_mean: torch.Tensor | None,
                 running_var: torch.Tensor | None, momentum: float, eps: float,
                 counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """torch.batch_norm_gather_stats_with_counts: those of all ranks ([ranks, channels], and how many values each has)
    as one, and the running ones moved towards it.
    """
    parts = counts.to(mean.dtype).view(-1, 1)
    total = parts.sum()
    middle = (mean * parts).sum(0) / total
    squares = ((invstd ** -2 - eps + (mean - middle) ** 2) * parts).sum(0)
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(middle.to(running_mean.dtype), alpha=momentum)
    if running_var is not None:
        running_var.mul_(1 - momentum).add_((squares / (total - 1)).to(running_var.dtype), alpha=momentum)
    return middle, (squares / total + eps).rsqrt()


def gather_equal_stats(input: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, running_mean: torch.Tensor | None,
                       running_var: torch.Tensor | None, momentum: float, eps: float,
                       count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """torch.batch_norm_gather_stats: every rank has as many values."""
    counts = torch.full((mean.shape[0],), count, dtype=mean.dtype, device=mean.device)
    return gather_stats(input, mean, invstd, running_mean, running_var, momentum, eps, counts)


def elements(input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, mean: torch.Tensor,
             invstd: torch.Tensor, eps: float) -> torch.Tensor:
    """torch.batch_norm_elemt: the normalised input, in its type."""
    result = (_wide(input) - _each(mean, input)) * _each(invstd, input)
    if weight is not None:
        result = result * _each(weight, input)
    return (result if bias is None else result + _each(bias, input)).to(input.dtype)


def backward_sums(grad_out: torch.Tensor, input: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor,
                  weight: torch.Tensor | None, input_g: bool, weight_g: bool, bias_g: bool) -> tuple:
    """torch.batch_norm_backward_reduce: of each channel the sums of dy and of dy (x - mean), and the gradients of
    weight and bias.
    """
    wide = _wide(grad_out)
    sum_dy, sum_dy_xmu = _sums(wide), _sums(wide * (_wide(input) - _each(mean, input)))
    kind = mean.dtype if weight is None else weight.dtype
    return (sum_dy if input_g else None, sum_dy_xmu if input_g else None,
            (sum_dy_xmu * invstd).to(kind) if weight_g else None, sum_dy.to(kind) if bias_g else None)


def backward_elements(grad_out: torch.Tensor, input: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor,
                      weight: torch.Tensor | None, sum_dy: torch.Tensor, sum_dy_xmu: torch.Tensor,
                      count: torch.Tensor) -> torch.Tensor:
    """torch.batch_norm_backward_elemt: the gradient of the input, in its type."""
    total = count.sum()
    slope = _each(sum_dy_xmu / total * invstd ** 2, input)
    result = _wide(grad_out) - _each(sum_dy / total, input) - (_wide(input) - _each(mean, input)) * slope
    return (result * _each(invstd if weight is None else invstd * weight, input)).to(input.dtype)


FUNCTIONS = {torch.batch_norm_stats: stats, torch.batch_norm_gather_stats: gather_equal_stats,
             torch.batch_norm_gather_stats_with_counts: gather_stats, torch.batch_norm_elemt: elements,
             torch.batch_norm_backward_reduce: backward_sums, torch.batch_norm_backward_elemt: backward_elements}
"""Torch's function → what is called in its place on a GPU's tensors."""
