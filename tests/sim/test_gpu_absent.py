# SPDX-License-Identifier: MIT
"""Names of torch that sim.as_gpu() does not simulate refuse, by one error that says so; torch's own does elsewhere."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from aiter_like import sim
from aiter_like.errors import UnsupportedError
from aiter_like.sim.torch_cuda import names

aten = torch.ops.aten
REFUSED = {
    "nested tensors": lambda x: torch.nested.nested_tensor([x]),
    "nested tensors made there": lambda x: torch.nested.nested_tensor([x.cpu()], device="cuda"),
    "scripts that are loaded": lambda x: torch.jit.load("file", "cuda"),
    "fake tensors": lambda x: FakeTensorMode().from_tensor(x),
    "exports": lambda x: torch.export.export(nn.Linear(4, 4).cuda(), (x,)),
    "wrappers": lambda x: torch.Tensor._make_wrapper_subclass(torch.Tensor, (2,), device=x.device),
    "dlpack": lambda x: torch.from_dlpack(x),
    "capsules": lambda x: torch.utils.dlpack.to_dlpack(x),
    "autocast": lambda x: torch.autocast("cuda", torch.bfloat16),
    "autocast by hand": lambda x: torch.set_autocast_enabled("cuda", True),
    "autocast of old": lambda x: torch.set_autocast_enabled(True),
    "types of old": lambda x: x.type(torch.FloatTensor),
    "types of old by name": lambda x: x.cpu().type("torch.cuda.HalfTensor"),
    "tunable operators": lambda x: torch.cuda.tunable.enable(),
    "memory's history": lambda x: torch.cuda.memory._record_memory_history(),
    "DataParallel": lambda x: nn.DataParallel(nn.Linear(4, 4).cuda(), [0, 0])(x),
    "compiled kernels": lambda x: torch.cuda._compile_kernel("", "f"),
    "torch's operators": lambda x: torch.library.Library("aten", "IMPL").impl("add.Tensor", torch.sub, "CUDA"),
    "allocators of pools": lambda x: torch.cuda.MemPool(object()),
    "events between processes": lambda x: torch.cuda.Event().ipc_handle(),
    "graphs' dumps": lambda x: torch.cuda.CUDAGraph().debug_dump("file"),
    "priorities": lambda x: torch.cuda.Stream().priority_range(),
}
OF_TORCH = {
    "flash attention": lambda x: aten._flash_attention_forward(x, x, x, None, None, 4, 4, 0., False, False),
    "efficient attention": lambda x: aten._scaled_dot_product_efficient_attention(x, x, x, None, True),
    "wider products": lambda x: torch.mm(x.half(), x.half(), out_dtype=torch.float32),
    "SyncBatchNorm": lambda x: torch.batch_norm_stats(x, 1e-5),
    "storages": lambda x: torch.UntypedStorage(16, device="cuda"),
    "types of old": lambda x: torch.cuda.FloatTensor(2),
    "streams of any device": lambda x: torch.Stream(device="cuda"),
    "nvtx": lambda x: torch.cuda.nvtx.range_push("a"),
    "lazy modules": lambda x: nn.LazyLinear(3).cuda(),
}
"""They need a GPU or an initialised module, and torch says so itself."""


@pytest.fixture
def x():
    with sim.as_gpu():
        yield torch.ones(4, 4, device="cuda")


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_simulated_refuses(x, what):
    with pytest.raises(UnsupportedError, match=r"^sim\.as_gpu: .* is not simulated; csrc/sim/GPU\.md"):
        REFUSED[what](x)


@pytest.mark.parametrize("what", OF_TORCH)
def test_what_torch_refuses_itself(x, what):
    with pytest.raises((NotImplementedError, RuntimeError, AssertionError, TypeError, ValueError)) as caught:
        OF_TORCH[what](x)
    assert any(word in str(caught.value) for word in ("CPU", "CUDA", "cuda", "uninitialized"))


def test_every_other_name_of_torch_cuda_refuses(x):
    for module, answered in ((torch.cuda, names._answers()), (torch.accelerator, names._accelerator_answers())):
        refusing = {*module.__all__} - names.KEPT_NAMES - answered.keys()
        for name in refusing:
            with pytest.raises(UnsupportedError, match=rf"{module.__name__}\.{name} is not simulated"):
                getattr(module, name)()
    for name in names.KEPT_NAMES:
        assert hasattr(torch.cuda, name)
    assert not isinstance(1, torch.cuda.ExternalStream) and not hasattr(torch._C, "_cuda_no_name")


def test_the_host_keeps_what_a_gpu_has_not(x):
    host = torch.ones(2, 2)
    assert torch.from_dlpack(host).equal(host) and torch.nested.nested_tensor([host]).unbind()[0].equal(host)
    with FakeTensorMode():
        assert torch.empty(3).device.type == "cpu"
    with torch.autocast("cpu", torch.bfloat16):
        assert (host @ host).dtype == torch.bfloat16
