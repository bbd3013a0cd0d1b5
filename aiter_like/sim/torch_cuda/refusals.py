# SPDX-License-Identifier: MIT
"""Calls that a GPU refuses and the CPU would do, within sim.as_gpu(): tensors of several devices in one call; and the
error of a tensor for which there is no memory.
"""

import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from aiter_like.sim.torch_cuda import devices, marks, memory

_ARITHMETIC = ("add sub mul div true_divide floor_divide remainder fmod pow maximum minimum fmax fmin atan2 eq ne "
               "lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor lerp addcmul "
               "addcdiv where heaviside hypot logaddexp logaddexp2 copysign nextafter xlogy float_power gcd lcm "
               "isclose clamp clip clamp_min clamp_max allclose vdot inner addr ger complex polar normal")
_PRODUCTS = "matmul mm bmm mv dot outer addmm addmv addbmm baddbmm einsum tensordot kron cross cdist"
_JOINED = ("cat concat concatenate stack hstack vstack dstack index_select gather scatter scatter_add take_along_dim "
           "equal masked_fill masked_select masked_scatter index_add index_copy index_fill searchsorted bucketize isin "
           "scatter_reduce index_reduce stft istft")
_LAYERS = ("linear bilinear conv1d conv2d conv3d layer_norm group_norm rms_norm batch_norm embedding cross_entropy "
           "nll_loss mse_loss l1_loss smooth_l1_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div "
           "prelu grid_sample embedding_bag gaussian_nll_loss huber_loss triplet_margin_loss instance_norm "
           "conv_transpose1d conv_transpose2d conv_transpose3d scaled_dot_product_attention cosine_similarity")
_SOLVERS = "solve solve_ex solve_triangular lstsq lu_solve cross vecdot multi_dot householder_product"
_OPERATORS = "add sub mul truediv floordiv mod pow matmul and or xor eq ne lt le gt ge"


def _functions() -> frozenset[Callable]:
    names = " ".join((_ARITHMETIC, _PRODUCTS, _JOINED)).split()
    found = {getattr(holder, name, None) for holder in (torch, torch.Tensor) for name in names}
    found |= {getattr(torch.Tensor, f"{name}_", None) for name in names}
    found |= {getattr(torch.linalg, name, None) for name in _SOLVERS.split()} | {torch.sparse.mm, torch.Tensor.backward}
    found |= {getattr(functional, name, None) for name in _LAYERS.split()}
    found |= {getattr(torch.Tensor, f"__{kind}{name}__", None) for kind in ("", "r", "i")
              for name in _OPERATORS.split()}
    return frozenset(found - {None})


_ON_ONE_DEVICE = _functions()
_INDEXING = frozenset((torch.Tensor.__getitem__, torch.Tensor.__setitem__))
_WRITING = frozenset((torch.Tensor.__setitem__, torch.index_put, torch.index_put_, torch.Tensor.index_put,
                      torch.Tensor.index_put_))
_COPYING = frozenset((torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda, torch.Tensor.copy_))
_FROM_HOST = frozenset((torch.tensor, torch.as_tensor, torch.asarray))
_WAITING = frozenset(
    {getattr(torch.Tensor, name) for name in ("item tolist __bool__ __int__ __float__ __index__ __complex__ nonzero "
                                              "masked_select equal allclose unique unique_consecutive").split()}
    | {torch.nonzero, torch.masked_select, torch.is_nonzero, torch.equal, torch.allclose, torch.unique, torch.where,
       torch.unique_consecutive, torch.argwhere})
"""Functions whose results' values or sizes the host has to know."""
sync_mode = [0]


def check_places(func: Callable, args: tuple, kwargs: dict) -> None:
    """Raises RuntimeError where the function takes tensors of one device and gets them of two: a number of the host,
    which a tensor without dimensions is, may meet those of a GPU."""
    is_called_by_python = not isinstance(func, torch._ops.OpOverload)  # torch's C++ has memory that bears no mark
    if func not in _ON_ONE_DEVICE and not (is_called_by_python and kwargs.get("out") is not None):
        return
    named = {name: value for name, value in kwargs.items() if name != "inputs"}  # a backward pass has any devices'
    places = {marks.index_of(tensor): tensor for tensor in marks.tensors((args, named))
              if marks.index_of(tensor) is not None or tensor.dim()}
    if len(places) < 2 or any(tensor.is_meta for tensor in places.values()):
        return
    first, second = map(devices.told, list(places)[:2])
    raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices, "
                       f"{first} and {second}! (in {getattr(func, '__name__', func)})")


def check_pinned(args: tuple) -> bool:
    """Raises RuntimeError where memory of a GPU is to be pinned, but for a call that copies a tensor there."""
    if args and isinstance(args[0], torch.Tensor):
        return False
    raise RuntimeError("Only dense CPU tensors can be pinned")


def check_indices(func: Callable, args: tuple) -> None:
    """Raises RuntimeError where a tensor is indexed by one of a GPU that it is not on, or given values of another
    device at indices."""
    if (func not in _INDEXING and func not in _WRITING) or len(args) < 2:
        return
    index = marks.index_of(args[0])
    if any(marks.index_of(one) not in (None, index) for one in marks.tensors(args[1])):
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor "
                           f"({devices.told(index)})")
    is_written = func in _WRITING and len(args) > 2 and isinstance(args[2], torch.Tensor) and args[2].dim()
    if is_written and _has_numbers(args[1]) and marks.index_of(args[2]) != index and not args[2].is_meta:
        raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices, "
                           f"{devices.told(index)} and {devices.told(marks.index_of(args[2]))}! (in {func.__name__})")


def _has_numbers(index: Any) -> bool:
    """Whether what stands in brackets has tensors or lists: other values are copied to their place, from any device."""
    return any(isinstance(one, (torch.Tensor, list)) for one in (index if isinstance(index, tuple) else (index,)))


def check_waiting(func: Callable, args: tuple, kwargs: dict) -> None:
    """Tells of a call for which the host waits, if the program has asked for it (torch.cuda.set_sync_debug_mode).

    Raises:
        RuntimeError: in the mode "error".
    """
    if not _waits(func, args, kwargs):
        return
    if sync_mode[0] == 2:
        raise RuntimeError("called a synchronizing CUDA operation")
    warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=4)


def set_sync_mode(mode: int) -> None:
    """0: nothing; 1: calls for which the host waits are warnings; 2: errors."""
    sync_mode[0] = mode


def is_waiting_copy(func: Callable, args: tuple, kwargs: dict) -> bool:
    """Whether a function of torch copies between the host and a GPU, and the host waits for it."""
    if func in _FROM_HOST and kwargs.get("device") is not None and not isinstance(args[0], torch.Tensor):
        return devices.index_of(kwargs["device"]) is not None
    return func in _COPYING and _waits(func, args, kwargs)


def _waits(func: Callable, args: tuple, kwargs: dict) -> bool:
    if func in _COPYING:
        places = [marks.index_of(one) for one in marks.tensors(args)]
        if func is torch.Tensor.copy_:
            return len(set(places)) > 1 and not (kwargs.get("non_blocking") or args[2:3] == (True,))
        wanted = next((one for one in (*args[1:], *kwargs.values()) if isinstance(one, (str, torch.device))), None)
        there = (None if func is torch.Tensor.cpu else 0 if func is torch.Tensor.cuda else
                 places[0] if wanted is None else devices.index_of(wanted))
        return (places[0] is None) != (there is None) and not (kwargs.get("non_blocking") or True in args[1:])
    if not any(marks.index_of(one) is not None for one in marks.tensors(args)):
        return False
    if func in _INDEXING:
        is_filled = len(args) > 2 and not isinstance(args[2], torch.Tensor)
        return any((one.dtype == torch.bool and not is_filled) or (one.dim() and marks.index_of(one) is None)
                   for one in marks.tensors(args[1]))
    if func is functional.one_hot:
        return kwargs.get("num_classes", args[1] if len(args) > 1 else -1) == -1
    if func in (torch.repeat_interleave, torch.Tensor.repeat_interleave):
        repeats = kwargs.get("repeats", args[1] if len(args) > 1 else args[0])
        return isinstance(repeats, torch.Tensor) and kwargs.get("output_size") is None
    return func in _WAITING and not (func in (torch.where,) and len(args) > 1)


def out_of_memory(error: RuntimeError) -> torch.OutOfMemoryError | None:
    """The error of a program when the host has no memory for a tensor of the GPU; None: the error is another one."""
    text = str(error)
    if "DefaultCPUAllocator" not in text:
        return None
    count = re.search(r"(\d+) bytes", text)
    return memory.of(devices.current()).out_of_memory(
        int(count[1]) if count else 0, f"This is the simulated MI300X, in the host's memory: {text}")
