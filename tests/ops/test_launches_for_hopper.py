# SPDX-License-Identifier: MIT
"""What classes of products launch on Hopper, without one: for sizes that they have not seen the same as for a first
call. Rows are many or few, so that blocks, splits and kernels differ.
"""

import pytest
import torch
from torch import Tensor

from aiter_like import dtypes
from aiter_like.device import planning_for
from aiter_like.dispatch.registry import OPS
from aiter_like.ops.gemm import hopper

pytest.importorskip("triton.tools.tensor_descriptor")

from aiter_like.jit import cuda_launch
from aiter_like.jit.triton_launch import Launch
from aiter_like.ops.gemm.triton import gemm_a8w8_blockscale as blockscale

SIZES = (16, 48, 40, 72, 100, 128, 208, 304, 600, 1000, 1016, 1024)
CASES = (("gemm_a16w16", "m", {"n": 1024, "k": 1024, "dtype": "bf16"}),
         ("gemm_a8w8", "m", {"n": 1024, "k": 1024, "weight_dtype": dtypes.name(dtypes.fp8_of("sm_90"))}),
         ("gemm_a8w8_blockscale", "m", {"n": 512, "k": 1024, "bpreshuffle": 0}),
         ("gemm_weight_only", "m", {"n": 512, "k": 1024, "bits": 4, "group_size": 128, "scale_rows": 1}),
         ("batched_gemm", "m", {"batch": 3, "n": 128, "k": 512, "dtype": "bf16"}),
         ("grouped_gemm", "rows", {"groups": 6, "n": 128, "k": 512, "dtype": "bf16", "is_gathered": 0}),
         ("moe_gemm", "pairs", {"experts": 3, "n": 256, "k": 512, "slots": 2, "block": 64, "dtype": "bf16",
                                "b_dtype": "same", "group_size": 0, "is_of_pairs": 0, "is_gated": 1}))


class _Compiled:
    """Stands in for a kernel that Triton compiled: a launch of it is noted in `launched`, by Triton's launcher and by
    the driver's in the same words.
    """

    def __init__(self, launch: Launch, launched: list):
        self.facts = launch.kernel, sorted(launch.options.items()), sorted(launch.constants.items())
        self.arguments, self.launched = launch.arguments, launched

    def __getitem__(self, places):
        return lambda *arguments: self.launched.append((self.facts, places, [
            each for argument in arguments[:len(self.arguments)] for each in _opened(argument)]))

    def start(self, x, y, z, *arguments):
        self.launched.append((self.facts, (x, y, z), list(arguments)))


def _opened(argument):
    """A tuple's parts; a descriptor as what makes one, its shape and strides."""
    if isinstance(argument, tuple):
        return [inner for each in argument for inner in _opened(each)]
    if not hasattr(argument, "block_shape"):
        return [argument]
    sizes = [*argument.shape, *argument.strides]
    return [(argument.base.data_ptr(), *sizes, tuple(argument.block_shape)), *sizes]


def _plain(argument, call):
    """An argument as a kernel sees it; any place in memory that the launches asked for counts as the same."""
    if isinstance(argument, tuple):
        return (_plain(argument[0], call), *argument[1:])
    address = argument.data_ptr() if hasattr(argument, "data_ptr") else argument
    if type(address) is not int or (address < 2**32 and not isinstance(argument, Tensor)):
        return argument
    is_of_call = any(isinstance(one, Tensor) and one.data_ptr() <= address < one.data_ptr() + max(one.nbytes, 1)
                     for one in call)
    return address if is_of_call else "memory"


@pytest.fixture
def launched(monkeypatch):
    """The launches that calls have started, none of them on a GPU."""
    found = []
    monkeypatch.setattr(Launch, "_run", lambda self, target, is_warmup=False: _Compiled(self, found))
    monkeypatch.setattr(cuda_launch, "parameters", lambda compiled: ["i64"] * len(_opened(compiled.arguments)))
    monkeypatch.setattr(cuda_launch, "starter", lambda compiled, parameters: compiled.start)
    monkeypatch.setattr(cuda_launch, "descriptor_maker",
                        lambda meta, traced: lambda *key: (*key, tuple(traced.block_shape)))
    return found


@pytest.mark.parametrize(("name", "field", "others"), CASES, ids=lambda case: case if isinstance(case, str) else "")
def test_sizes_that_a_class_has_not_seen(launched, name, field, others):
    op = OPS[name]

    def launches(call):
        launched.clear()
        op(call, backend="triton")
        assert launched
        return [(*facts, [_plain(each, call) for each in arguments]) for *facts, arguments in launched]

    with torch.no_grad(), planning_for("sm_90"):
        key = {name: "bf16" if name.endswith("dtype") else 0 for name in op.tune_fields} | others
        calls = [op.tuning.case(key | {field: size}, torch.device("cpu"), 0) for size in SIZES]
        expected = []
        for call in calls:
            op.reset()
            expected.append(launches(call))
        assert any("hopper" in kernel.fn.__name__ for each in expected for (kernel, *_), *_ in each)
        op.reset()
        for _ in range(2):
            assert [launches(call) for call in calls] == expected
        assert 1 < len(op._classes) < len(SIZES)
        assert not any(each.trace.untraced for each in op._classes._last)
    op.reset()


def test_rows_that_are_alike():
    """Blocks are those of the rows that the planners round to."""
    for n, k in ((512, 7168), (4096, 4096), (24576, 1536)):
        for m in (*range(1, 260), *range(260, 9000, 97)):
            for sizes in ((2, 132, False, 16), (1, 132, True, 1)):
                chosen = hopper._suited.__wrapped__(m, n, k, *sizes)
                assert hopper.suited(m, n, k, *sizes) == chosen
            assert blockscale.hopper_blocks(m, n, k, 2, 132) == blockscale._hopper_blocks.__wrapped__(m, n, k, 2, 132)
