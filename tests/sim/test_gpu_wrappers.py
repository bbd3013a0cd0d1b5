# SPDX-License-Identifier: MIT
"""Within sim.as_gpu(): tensors that wrap others (of programs' classes, DTensor), training in parts, storages, fake
tensors and exported programs, lazy modules, switches."""

from __future__ import annotations

import io

import pytest
import torch
from torch import distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.fx.experimental import proxy_tensor
from torch.utils._pytree import tree_map

from aiter_like import sim
from aiter_like.errors import UnsupportedError


@pytest.fixture(autouse=True)
def gpu():
    with sim.as_gpu():
        yield


@pytest.fixture
def group(tmp_path):
    distributed.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class Wrapping(torch.Tensor):
    """A tensor that has another one, and makes one of its own beside it."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=held.device)

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = tree_map(lambda one: one.held if isinstance(one, cls) else one, args)
        zeros = torch.zeros(3, device=next(one for one in args if isinstance(one, torch.Tensor)).device)
        return cls(func(*args, **(kwargs or {})) + zeros)


def test_tensors_that_wrap_others():
    own = vars(Wrapping)["__torch_dispatch__"]
    used = torch.cuda.memory_allocated()
    x = Wrapping(torch.ones(3, device="cuda"))
    assert torch.cuda.memory_allocated() - used == 512  # the wrapper has no memory of its own
    y = x * 2
    assert isinstance(y, Wrapping) and x.is_cuda and y.is_cuda and y.held.is_cuda and y.held.tolist() == [2, 2, 2]
    host = Wrapping(torch.ones(3)) + 1
    assert not host.is_cuda and not host.held.is_cuda and vars(Wrapping)["__torch_dispatch__"] is not own


def test_classes_that_wrap_are_themselves_after_the_block():
    assert vars(Wrapping)["__torch_dispatch__"].__func__.__qualname__ == "Wrapping.__torch_dispatch__"
    assert not hasattr(vars(Wrapping)["__torch_dispatch__"].__func__, "__wrapped__")


def test_distributed_tensors(group):
    mesh = distributed.init_device_mesh("cuda", (1,))
    x = distribute_tensor(torch.arange(16., device="cuda").view(4, 4), mesh, [Shard(0)])
    assert mesh.device_type == "cuda" and x.is_cuda and x.device.type == "cuda" and x.to_local().is_cuda
    y = (x @ x).redistribute(mesh, [Replicate()])
    assert y.is_cuda and y.to_local().is_cuda and y.full_tensor().is_cuda
    torch.testing.assert_close(y.full_tensor().cpu(), x.to_local().cpu() @ x.to_local().cpu())
    assert distributed.tensor.randn(2, device_mesh=mesh).to_local().is_cuda


def test_sharded_training(group):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    reference = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).cuda()
    reference.load_state_dict(model.state_dict())
    fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.float32))
    assert model[0].weight.is_cuda  # it has moved there
    x = torch.randn(3, 4, device="cuda")
    for one in (model, reference):
        optimizer = torch.optim.AdamW(one.parameters())
        one(x).square().sum().backward()
        optimizer.step()
        assert one[0].weight.grad.is_cuda
    torch.testing.assert_close(model[0].weight.full_tensor(), reference[0].weight.detach())


def test_collectives_of_functions(group):
    from torch.distributed import _functional_collectives as functional

    x = torch.ones(3, device="cuda")
    for made in (functional.all_reduce(x, "avg", distributed.group.WORLD),
                 functional.all_gather_tensor(x, 0, distributed.group.WORLD)):
        assert made.is_cuda and (made + 1).tolist() == [2, 2, 2] and (made + 1).is_cuda
    distributed.barrier(device_ids=[0])
    with distributed.distributed_c10d._coalescing_manager(device=torch.device("cuda")):
        distributed.all_reduce(x)
    with pytest.raises(RuntimeError, match="there is no device cuda:9"):
        distributed.barrier(device_ids=[9])
    assert torch.cuda.nccl.version() == (2, 22, 3)


def test_storages_are_made_on_the_gpu():
    for storage in (torch.UntypedStorage(16, device="cuda"), torch.UntypedStorage([1, 2], device="cuda:0"),
                    torch.TypedStorage([1.0], dtype=torch.float32, device="cuda"), torch.cuda.FloatStorage(4),
                    torch.cuda.FloatStorage([1.0, 2.0])):
        assert storage.is_cuda and storage.device == torch.device("cuda:0")
    assert not torch.UntypedStorage(16).is_cuda and not torch.FloatStorage(4).is_cuda
    x = torch.empty(0, device="cuda").set_(torch.UntypedStorage(16, device="cuda"), 0, (4,))
    assert x.is_cuda and x.storage_type() is torch.cuda.FloatStorage
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        torch.UntypedStorage(1 << 50, device="cuda")


def test_modules_move_to_a_number():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert all(one.is_cuda for one in model.to(0).state_dict().values())
    assert not any(one.is_cuda for one in model.to("cpu").state_dict().values())
    assert model.to(device=0, dtype=torch.float64)[0].weight.is_cuda


def test_lazy_modules():
    layer = nn.LazyLinear(3).cuda()
    assert layer(torch.ones(2, 4, device="cuda")).is_cuda and layer.weight.is_cuda and layer.weight.shape == (3, 4)
    assert nn.LazyLinear(3, device="cuda").to("cuda")(torch.ones(2, 4, device="cuda")).is_cuda


def test_lengths_of_packed_sequences_are_the_host_s():
    layer, x = nn.LSTM(3, 2, batch_first=True).cuda(), torch.randn(2, 4, 3, device="cuda")
    packed, _ = layer(nn.utils.rnn.pack_padded_sequence(x, [4, 2], batch_first=True))
    padded, lengths = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    assert padded.is_cuda and not lengths.is_cuda and lengths.tolist() == [4, 2]


def test_fake_tensors_say_where_they_are():
    with FakeTensorMode() as mode:
        x = torch.empty(3, device="cuda")
        assert x.device == (x + 1).device == torch.device("cuda:0") and nn.Linear(3, 2, device="cuda")(x).is_cuda
        assert torch.empty(3).device.type == x.cpu().device.type == "cpu"
    assert mode.from_tensor(torch.ones(2, device="cuda")).device == torch.device("cuda:0")


class Making(nn.Module):
    def forward(self, x):
        return x + torch.ones(3, device="cuda"), torch.arange(3, device="cuda"), x.cpu(), torch.zeros(3).cuda()


def test_exported_programs_make_tensors_on_the_gpu():
    x, file = torch.ones(2, 3, device="cuda"), io.BytesIO()
    program = torch.export.export(Making(), (x,))
    torch.export.save(program, file)
    file.seek(0)
    for one in (program, torch.export.load(file)):
        assert [made.is_cuda for made in one.module()(x)] == [True, True, False, True]
    for kind in ("real", "fake", "symbolic"):
        graph = proxy_tensor.make_fx(lambda x: (x + 1, torch.zeros(2, device="cuda")), tracing_mode=kind)(x)
        assert all(made.is_cuda for made in graph(x))


def test_generators_of_graphs():
    generator = torch.Generator("cuda").manual_seed(3)
    other = torch.Generator("cuda").graphsafe_set_state(generator.graphsafe_get_state())
    assert torch.equal(torch.rand(3, device="cuda", generator=generator),
                       torch.rand(3, device="cuda", generator=other))


def test_switches():
    tunable, plans = torch.cuda.tunable, torch.backends.cuda.cufft_plan_cache
    tunable.enable(True)
    tunable.set_filename("found.csv", insert_device_ordinal=True)
    tunable.set_max_tuning_duration(3)
    assert tunable.is_enabled() and tunable.get_filename() == "found0.csv" and tunable.get_max_tuning_duration() == 3
    plans.max_size = 10
    plans[0].clear()
    assert plans.max_size == 10 and plans.size == 0
    with pytest.raises(RuntimeError, match="read-only"):
        plans[0].size = 3
    torch.backends.cuda.preferred_linalg_library("cusolver")
    assert torch.backends.cuda.preferred_linalg_library() == torch._C._LinalgBackend.Cusolver


def test_torch_s_own_words():
    x = torch.ones(2, device="cuda")
    with pytest.raises(TypeError, match=r"can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu\(\)"):
        x.numpy()
    with pytest.raises(RuntimeError, match=r"cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned"):
        x.pin_memory()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.zeros(2, device="cuda", pin_memory=True)
    for mixed in (lambda: torch.clamp(x, min=torch.zeros(2)), lambda: torch.allclose(x, torch.ones(2)),
                  lambda: torch.linalg.solve(torch.eye(2, device="cuda"), torch.eye(2)),
                  lambda: torch.complex(x, torch.ones(2)),
                  lambda: torch.stft(x.repeat(99), 64, window=torch.ones(64), return_complex=True)):
        with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu!"):
            mixed()
    assert torch.get_device(x) == 0 and torch.get_device(x.cpu()) == -1
    with pytest.raises(NotImplementedError, match="events of several processes"):
        torch.cuda.Event(interprocess=True).ipc_handle()


def test_two_devices_in_torch_s_own_words():
    x, layer = torch.ones(1, 2, 3, device="cuda", requires_grad=True), nn.LSTM(3, 2).cuda()
    with pytest.raises(RuntimeError, match="found input tensor at cpu and parameter tensor at cuda:0"):
        layer(x.cpu(), tuple(torch.zeros(1, 2, 2) for _ in "hc"))
    with pytest.raises(RuntimeError, match="found input tensor at cuda:0 and hidden tensor at cpu"):
        layer(x, tuple(torch.zeros(1, 2, 2) for _ in "hc"))
    packed = nn.utils.rnn.pack_padded_sequence(x.detach().transpose(0, 1), [1, 1], batch_first=True)
    assert layer(packed, layer(x)[1])[0].data.is_cuda
    with pytest.raises(RuntimeError, match="different devices. Got: cuda:0 and cpu"):
        torch.equal(x, torch.ones(1, 2, 3))
    with pytest.raises(RuntimeError, match="Function MulBackward0 returned an invalid gradient at index 0 - expected "
                                           "device cuda:0 but got cpu"):
        (x * 2).backward(torch.ones(1, 2, 3))
    (x * 2).sum().backward(torch.tensor(1.0))  # one without dimensions goes there
    assert x.grad.is_cuda and x.grad.unique().tolist() == [2]


def test_extensions_of_the_gpu_refuse(tmp_path):
    from torch.utils import cpp_extension

    with pytest.raises(UnsupportedError, match="load_inline compiles no kernels"):
        cpp_extension.load_inline("gpu", cpp_sources="", cuda_sources="__global__ void f() {}", functions=["f"])
    with pytest.raises(UnsupportedError, match="load compiles no kernels"):
        cpp_extension.load("gpu", [str(tmp_path / "a.cpp"), str(tmp_path / "b.cu")])


@pytest.mark.exhaustive  # torch's headers take a compiler a minute
def test_results_of_extensions_are_where_their_arguments_are(tmp_path):
    from torch.utils import cpp_extension

    made = cpp_extension.load_inline("twice", cpp_sources="torch::Tensor twice(torch::Tensor x) { return x * 2; }",
                                     functions=["twice"], build_directory=str(tmp_path))
    assert made.twice(torch.ones(3, device="cuda")).is_cuda and not made.twice(torch.ones(3)).is_cuda


def test_kernels_compiled_while_a_program_runs():
    source = """extern "C" __global__ void add_one(float* x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] += 1.0f;
    }"""
    kernel, x = torch.cuda._compile_kernel(source, "add_one"), torch.zeros(100, device="cuda")
    kernel(grid=(1, 1, 1), block=(128, 1, 1), args=(x, 100))
    assert x.tolist() == [1] * 100
