# SPDX-License-Identifier: MIT
"""sim.as_gpu(): copies of tensors and modules, streams, calls of two devices, what a GPU has and the CPU lacks."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from aiter_like import sim

pytestmark = pytest.mark.usefixtures("gpu")


def test_copies_are_where_their_tensors_are():
    x = torch.ones(3, device="cuda", requires_grad=True)
    (2 * x).sum().backward()
    twin = copy.deepcopy({"a": x, "b": [x]})
    assert twin["a"].is_cuda and twin["a"].grad.is_cuda and twin["b"][0] is twin["a"]
    norm = copy.deepcopy(torch.nn.BatchNorm1d(3).cuda())
    assert norm.running_mean.is_cuda and norm.weight.is_cuda and norm(torch.ones(2, 3, device="cuda")).is_cuda
    assert not copy.deepcopy(torch.ones(2)).is_cuda
    assert torch.nn.utils.rnn.pack_sequence([torch.ones(3)]).to(device="cuda").data.is_cuda


def test_gradients_go_back_where_tensors_came_from():
    for there in (lambda one: one.cuda(), lambda one: one.to("cuda")):
        host = torch.ones(2, requires_grad=True)
        (2 * there(host)).sum().backward()
        assert not host.grad.is_cuda and host.grad.tolist() == [2, 2]
    x = torch.ones(2, device="cuda", requires_grad=True)
    (first,) = torch.autograd.grad(x.cpu().square().sum(), x, create_graph=True)
    first.sum().backward()
    assert first.is_cuda and x.grad.is_cuda and x.grad.tolist() == [2, 2]
    assert not torch.func.grad(lambda one: one.cuda().square().sum().cpu())(torch.ones(2)).cpu().is_cuda


def test_sparse_tensors_move():
    for sparse in (torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr()):
        for there in (sparse.cuda(), sparse.to("cuda")):
            assert there.is_cuda and not there.cpu().is_cuda and there.to_dense().tolist() == [[1, 0], [0, 1]]
            assert pickle.loads(pickle.dumps(there)).is_cuda and not sparse.is_cuda and (2 * there).is_cuda
    assert copy.deepcopy(torch.eye(2, device="cuda").to_sparse()).is_cuda
    bag = torch.nn.EmbeddingBag(4, 2, sparse=True).cuda()
    bag(torch.tensor([[0, 1]], device="cuda")).sum().backward()
    assert copy.deepcopy(bag).weight.is_cuda and bag.weight.grad.is_sparse and bag.weight.grad.is_cuda


def test_streams_have_handles(gpu):
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    assert stream != other and stream.cuda_stream != other.cuda_stream != 0
    assert torch.cuda.default_stream().cuda_stream == 0 and repr(stream).startswith("<torch.cuda.Stream device=cuda:0")
    with stream, other, stream:
        assert torch.cuda.current_stream() == stream
        assert torch._C._cuda_getCurrentRawStream(0) == stream.cuda_stream
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.set_stream(other)
    assert torch.cuda.current_stream() == other
    torch.cuda.set_stream(torch.cuda.default_stream())
    torch.ones(1, device="cuda").record_stream(stream)
    event = torch.cuda.Event()
    assert event.device is None
    assert stream.record_event(event) is event and event.device == gpu


def test_devices_by_other_names():
    with torch.accelerator.device_index(0):
        assert torch.accelerator.current_device_index() == torch._C._cuda_getDevice() == 0
    assert torch.backends.cuda.is_built() and torch.cuda.get_allocator_backend() == "native"
    assert torch._C._get_accelerator() == torch.device("cuda")
    assert isinstance(torch._C._cuda_CUDAAllocator_AllocatorState, type), "torch._inductor imports it"
    assert torch.cuda.memory_allocated(torch.cuda.device(0)) == torch.cuda.memory_allocated("cuda:0")
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        torch.cuda.current_stream(torch.device("cpu"))
    assert torch.cuda.get_device_capability((0, 304)) == (9, 4)  # torch takes what it does not know as the current one


def test_results_of_scripted_functions():
    x, layer = torch.ones(2, 3, device="cuda"), torch.nn.Linear(3, 3).cuda()
    assert torch.jit.script(layer)(x).is_cuda and torch.jit.trace(layer, x)(x).is_cuda
    assert not torch.jit.script(torch.nn.Linear(3, 3))(torch.ones(2, 3)).is_cuda


def test_indices_of_another_device():
    index = torch.tensor([0, 2], device="cuda")
    for call in (lambda: torch.ones(3)[index], lambda: torch.ones(3).__setitem__(index, 2.0)):
        with pytest.raises(RuntimeError, match=r"same device as the indexed tensor \(cpu\)"):
            call()
    assert torch.ones(3, device="cuda")[index.cpu()].is_cuda


def test_calls_for_which_the_host_waits():
    x = torch.ones(3, device="cuda")
    at, mask = torch.tensor([1, 2], device="cuda"), x > 0
    host, twice = at.cpu(), at[:1]
    torch.cuda.set_sync_debug_mode("error")
    for call in (lambda: x.sum().item(), lambda: x.cpu(), lambda: torch.ones(1).to("cuda"), lambda: x[x > 0],
                 lambda: x.nonzero(), lambda: bool(x[0]), lambda: x.copy_(torch.ones(3)), lambda: x[host],
                 lambda: torch.nn.functional.one_hot(at), lambda: torch.repeat_interleave(x, twice),
                 lambda: x.__setitem__(mask, x)):
        with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
            call()
    assert torch.cuda.get_sync_debug_mode() == 2 and (x + 1).is_cuda and torch.ones(1).item() == 1
    x[mask] = 1.
    x[at]
    assert torch.nn.functional.one_hot(at, 3).is_cuda
    assert torch.repeat_interleave(x, 2).shape == torch.repeat_interleave(x, twice + 1, output_size=6).shape
    x.to("cpu", non_blocking=True)
    x.copy_(torch.ones(3), non_blocking=True)
    torch.cuda.set_sync_debug_mode("warn")
    with pytest.warns(UserWarning, match="called a synchronizing CUDA operation"):
        x.sum().item()
    torch.cuda.set_sync_debug_mode(0)
    assert x.sum().item() == 3


@pytest.mark.parametrize("by_rows", [False, True])
def test_scaled_products_of_8_bit_numbers(by_rows):
    a, b = (torch.randn(16, 32, device="cuda").to(torch.float8_e4m3fnuz) for _ in range(2))
    scales = (torch.rand(16, 1, device="cuda"), torch.rand(1, 16, device="cuda")) if by_rows else (
        torch.tensor(0.5, device="cuda"), torch.tensor(2., device="cuda"))
    found = torch._scaled_mm(a, b.t(), scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16)
    assert found.is_cuda and found.dtype == torch.bfloat16
    expected = (a.double() * scales[0].double()) @ (b.double().t() * scales[1].double())
    torch.testing.assert_close(found, expected.bfloat16())
    with pytest.raises(RuntimeError, match="mat2 column-major"):
        torch._scaled_mm(a, b.t().contiguous(), *scales)
    with pytest.raises(RuntimeError, match="_scaled_mm: scales must be float32"):
        torch._scaled_mm(a, b.t(), scales[0], scales[1].half())


def test_gradients_of_results_that_are_not_used_are_where_these_are():
    seen = []

    class Split(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, x.cpu() * 3, x * 4

        @staticmethod
        def backward(ctx, *gradients):
            seen.append([one.is_cuda for one in gradients])
            return gradients[0] * 2

    x = torch.ones(2, device="cuda", requires_grad=True)
    Split.apply(x)[0].sum().backward()
    assert seen == [[True, False, True]] and x.grad.is_cuda and x.grad.tolist() == [2, 2]


def test_functions_with_gradients_are_themselves_after_the_block():
    apply = vars(torch.autograd.Function)["apply"]
    with sim.as_gpu():  # within that of the fixture
        pass
    assert vars(torch.autograd.Function)["apply"] is apply and isinstance(apply, classmethod)


def test_profiles_of_a_gpu_alone():
    x = torch.ones(8, device="cuda")
    counts = []
    with profile(activities=[ProfilerActivity.CUDA], schedule=schedule(wait=1, warmup=1, active=1, repeat=1),
                 on_trace_ready=lambda done: counts.append(len(done.key_averages()))) as taken:
        for _ in range(4):
            x + 1
            taken.step()
    with torch.autograd.profiler.profile(use_device="cuda") as older:
        x + 1
    assert counts[0] > 0 and len(older.key_averages()) > 0


@pytest.mark.parametrize("index", [torch.tensor([0, 1]), [0, 1], (slice(None), [0, 1]), torch.tensor([True, True])])
def test_values_of_another_device_at_indices(index):
    x = torch.zeros(2, 2, device="cuda")
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu"):
        x[index] = torch.ones(2, 2)
    x[index] = torch.tensor(3.)
    x[:, 0] = torch.ones(2)  # it is copied
    assert x.tolist() == [[1, 3], [1, 3]]
    with pytest.raises(RuntimeError, match="in index_put_"):
        torch.index_put_(x, (torch.tensor([0]),), torch.ones(1, 2))


@pytest.mark.parametrize("call", [torch.isin, torch.hypot, torch.searchsorted, torch.bucketize,
                                  lambda x, y: x.masked_fill_(y > 1, 0), lambda x, y: x.index_fill(0, y.long(), 0)])
def test_two_devices_in_one_call(call):
    x = torch.tensor([1., 2.])
    call(x.cuda(), x.cuda() - 1)
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu"):
        call(x.cuda(), x - 1)


def test_results_are_written_where_the_arguments_are():
    x, out = torch.rand(3, 4, device="cuda"), torch.empty(3, device="cuda")
    assert torch.prod(x, 1, out=out) is out and out.equal(x.prod(1))
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu"):
        torch.mode(x, 1, out=(torch.empty(3), torch.empty(3, dtype=torch.long)))


def test_gradients_are_where_their_tensors_are():
    x = torch.rand(3, device="cuda", requires_grad=True)
    with pytest.raises(RuntimeError, match="different device: cpu instead of cuda:0"):
        x.grad = torch.ones(3)
    x.grad = torch.ones(3, device="cuda")
    x.grad = None

    class Without(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return None

    Without.apply(x.cpu()).sum().backward()  # no gradient goes back to the GPU
    assert x.grad is None
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu! .in backward"):
        (x * 2).backward(torch.ones(3))
    (x * 2).sum().backward(torch.tensor(1.0))  # one without dimensions goes there
    assert x.grad.is_cuda and x.grad.unique().tolist() == [2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_tensor_like_another_ones_type_goes_where_that_is(dtype):
    x, other = torch.ones(2), torch.ones(1, dtype=dtype, device="cuda")
    assert x.type_as(other).device == other.device and not x.is_cuda and x.type_as(other).dtype == dtype
    assert not other.type_as(x).is_cuda and other.type_as(other) is other


def test_modules_move_to_a_number():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert all(one.is_cuda for one in model.to(0).state_dict().values())
    assert not any(one.is_cuda for one in model.to("cpu").state_dict().values())
    assert model.to(device=0, dtype=torch.float64)[0].weight.is_cuda


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
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu!"):
        torch.equal(x, torch.ones(2))
