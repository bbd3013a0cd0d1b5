# SPDX-License-Identifier: MIT
"""sim.as_gpu(): operators that programs register for a GPU, process groups of NCCL, default devices of generators."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from aiter_like import sim


@pytest.fixture(autouse=True)
def gpu():
    with sim.as_gpu() as device:
        yield device


def test_kernels_for_a_gpu_and_for_the_host():
    @torch.library.custom_op("as_gpu_test::scaled", mutates_args=(), device_types="cpu")
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @scaled.register_kernel("cuda")
    def _(x):
        assert x.is_cuda and torch.empty(1, device=x.device).is_cuda
        return x * 30

    there = scaled(torch.ones(1, device="cuda"))
    assert there.is_cuda and there.item() == 30 and scaled(torch.ones(1)).item() == 3
    library = torch.library.Library("as_gpu_test", "FRAGMENT")
    library.define("more(Tensor x) -> Tensor")
    library.impl("more", lambda x: x + 1, "CUDA")
    assert torch.ops.as_gpu_test.more(torch.ones(1, device="cuda")).item() == 2
    with pytest.raises(NotImplementedError, match=r"more' with arguments from the 'CPU' backend: .*kernel for CUDA"):
        torch.ops.as_gpu_test.more(torch.ones(1))


def test_kernels_for_any_device_beside_those_for_a_gpu():
    library = torch.library.Library("as_gpu_test", "FRAGMENT")
    library.define("most(Tensor x) -> Tensor")
    library.impl("most", lambda x: x + 1, "CUDA")
    library.impl("most", lambda x: x + 2, "CompositeExplicitAutograd")
    assert torch.ops.as_gpu_test.most(torch.ones(1, device="cuda")).item() == 2
    assert torch.ops.as_gpu_test.most(torch.ones(1)).item() == 3


def test_kernels_for_any_device_see_where_tensors_are():
    @torch.library.custom_op("as_gpu_test::place", mutates_args=())
    def place(x: torch.Tensor) -> torch.Tensor:
        return torch.full((1,), float(x.is_cuda), device=x.device)

    assert place(torch.ones(1, device="cuda")).item() == 1 and place(torch.ones(1)).item() == 0
    assert place(torch.ones(1, device="cuda")).is_cuda


def test_groups_of_nccl(tmp_path):
    from torch import distributed

    distributed.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1,
                                   device_id=torch.device("cuda:0"))
    try:
        assert distributed.get_backend() == "nccl" and distributed.is_nccl_available()
        x, out = torch.ones(2, device="cuda"), [torch.empty(2, device="cuda")]
        distributed.all_reduce(x)
        distributed.all_gather(out, x)
        assert out[0].is_cuda and out[0].tolist() == [1, 1] and distributed.new_group([0], backend="nccl")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda(), device_ids=[0])
        model(torch.ones(1, 2, device="cuda")).sum().backward()
        assert model.module.weight.grad.is_cuda
    finally:
        distributed.destroy_process_group()


def test_a_default_device_and_its_generators():
    torch.set_default_device("cuda")
    loader = DataLoader(torch.arange(4, device="cuda"), shuffle=True, generator=torch.Generator("cuda").manual_seed(3))
    found = [one.item() for one in loader]
    assert sorted(found) == [0, 1, 2, 3]
    assert torch.randperm(4, generator=torch.Generator("cuda")).is_cuda
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.randperm(4, generator=torch.Generator("cpu"))


def test_files_whose_storages_a_function_places(tmp_path):
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "file")
    loaded = torch.load(tmp_path / "file", map_location=lambda storage, location: storage.cuda(0))
    assert loaded["weight"].is_cuda and loaded["bias"].is_cuda


@pytest.fixture
def aten():
    library = torch.library.Library("aten", "IMPL")
    yield library
    library._destroy()


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_kernels_of_torch_s_own_operators_for_the_gpu(aten):
    seen = []

    def add(x, y, *, alpha=1):
        seen.append((x.is_cuda, y))
        return torch.sub(x, y)

    aten.impl("add.Tensor", add, "CUDA")
    there, here = torch.ones(2, device="cuda"), torch.ones(2)
    assert (there + 3).tolist() == [-2, -2] and (there + 3).is_cuda and seen == [(True, 3)] * 2
    assert (here + here).tolist() == [2, 2] and (here.half() + 0.1).dtype == torch.float16 and len(seen) == 2
    assert (torch.tensor(1) + 0.5).dtype == torch.float32 and (torch.ones((), dtype=torch.float16) + 1.0).dtype == (
        torch.float16)
    there.requires_grad_()
    (there + 3).sum().backward()
    assert there.grad.is_cuda and there.grad.tolist() == [1, 1]
    aten._destroy()
    assert (there + 3).tolist() == [4, 4] and len(seen) == 3


def test_kernels_of_torch_s_own_operators_within_its_functions(aten):
    """Also for what a function of C++ calls on its way, for functions that make tensors, and for indices of the host.
    """
    seen = []

    def softmax(x, dim, half_to_float):
        seen.append((x.is_cuda, x.dtype))
        return torch.full_like(x, 7)

    def index(x, indices):
        seen.append([one.is_cuda for one in indices])
        return torch.zeros(1, device=x.device)

    def ones(size, *, device=None, **options):
        seen.append(device)
        return torch.full(size, 5.0, device=device)

    for name, fn in (("_softmax", softmax), ("index.Tensor", index), ("ones", ones),
                     ("_cslt_compress", lambda x: x * 2)):  # the CPU has no kernel of the last one
        aten.impl(name, fn, "CUDA")
    x = torch.zeros(3, dtype=torch.int32, device="cuda")
    assert torch.softmax(x, 0, dtype=torch.float32).tolist() == [7, 7, 7] and seen.pop() == (True, torch.float32)
    assert x[torch.tensor([0, 1])].is_cuda and seen.pop() == [True]
    assert torch.ones(2, device="cuda").tolist() == [5, 5] and seen.pop() == torch.device("cuda", 0)
    assert torch._cslt_compress(torch.arange(2, device="cuda")).tolist() == [0, 2]
    with pytest.raises(NotImplementedError, match="Could not run 'aten::_cslt_compress' .* from the 'CPU' backend"):
        torch._cslt_compress(torch.arange(2))
    assert torch.ones(2).tolist() == [1, 1] and torch.softmax(torch.zeros(2), 0).tolist() == [0.5, 0.5] and not seen


def test_numbers_among_what_such_kernels_are_given_are_the_host_s(aten):
    seen = []

    def to_copy(x, *, dtype=None, **options):
        seen.append(x.is_cuda)
        return torch.full(x.shape, 3, dtype=dtype, device=x.device)

    aten.impl("mul.Tensor", to_copy, "CUDA")
    assert torch.mul(0.5, 3).dtype == torch.float32 and torch.mul(0.5, 3).item() == 1.5
    aten.impl("bitwise_left_shift", to_copy, "CUDA")  # torch has it with overloads alone, and takes this
    aten.impl("_to_copy", to_copy, "CUDA")
    x = torch.ones(2, device="cuda")
    assert torch.masked_fill(x, torch.tensor([True, False], device="cuda"), 0.5).tolist() == [0.5, 1] and not seen
    wide = torch.zeros(1, device="cuda", dtype=torch.float64)
    assert torch.masked_fill(wide, wide == 0, 0.1).item() == 0.1
    assert x.half().tolist() == [3, 3] and seen == [True]
    assert torch.ones(2).half().tolist() == [1, 1] and seen == [True]


def test_such_kernels_are_given_the_generator_that_the_program_names(aten):
    seen = []

    def multinomial(x, count, with_replacement=False, **options):
        seen.append(options)
        return torch.zeros(count, dtype=torch.int64, device=x.device)

    aten.impl("multinomial", multinomial, "CUDA")
    x = torch.ones(4, device="cuda")
    named = torch.Generator("cuda")
    torch.multinomial(x, 2)
    torch.multinomial(x, 2, generator=named)
    assert seen == [{}, {"generator": named}] and torch.multinomial(torch.ones(1), 1).tolist() == [0]
