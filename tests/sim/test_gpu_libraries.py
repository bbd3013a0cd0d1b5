# SPDX-License-Identifier: MIT
"""sim.as_gpu(): operators that programs register for a GPU, process groups of NCCL, default devices of generators."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

pytestmark = pytest.mark.usefixtures("gpu")


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
        with distributed.distributed_c10d._coalescing_manager(device=torch.device("cuda")):
            distributed.all_reduce(x)
        distributed.barrier(device_ids=[0])
        with pytest.raises(RuntimeError, match="there is no device cuda:9"):
            distributed.barrier(device_ids=[9])
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
