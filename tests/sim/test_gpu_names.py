# SPDX-License-Identifier: MIT
"""sim.as_gpu(): torch's types of old, copies of tensors and modules, streams' and devices' lower names."""

from __future__ import annotations

import copy
import ctypes
import pickle

import numpy
import pytest
import torch

from aiter_like import sim
from aiter_like.errors import UnsupportedError
from aiter_like.sim import session


@pytest.fixture(autouse=True)
def gpu():
    with sim.as_gpu() as device:
        yield device


def test_types_of_old(gpu):
    x, host = torch.cuda.FloatTensor(2, 3).fill_(1), torch.FloatTensor(2, 3).fill_(1)
    assert x.device == gpu and torch.cuda.LongTensor([3, 4]).tolist() == [3, 4] and not host.is_cuda
    assert isinstance(x, torch.cuda.FloatTensor) and not isinstance(x, torch.FloatTensor)
    assert isinstance(host, torch.FloatTensor) and not isinstance(host, (torch.cuda.FloatTensor, torch.LongTensor))
    for to_gpu in (torch.cuda.HalfTensor, "torch.cuda.HalfTensor"):
        there = host.type(to_gpu)
        assert there.is_cuda and there.dtype == torch.float16 and there.type() == "torch.cuda.HalfTensor"
        for to_host in (torch.FloatTensor, "torch.FloatTensor"):
            assert not there.type(to_host).is_cuda and there.type(to_host).dtype == torch.float32
    assert x.type(torch.float16).is_cuda and torch.cuda.FloatTensor.dtype == torch.float32
    assert str(torch.cuda.FloatTensor) == "<class 'torch.cuda.FloatTensor'>" and torch.cuda.FloatTensor.is_cuda
    assert str(torch.LongTensor | None) == "torch.LongTensor | None" and isinstance(torch.cuda.FloatTensor, type)
    with pytest.raises(TypeError, match=r"expected torch\.cuda\.FloatTensor \(got torch\.FloatTensor\)"):
        torch.cuda.FloatTensor(host)
    with pytest.raises(ValueError, match="invalid type: 'torch.cuda.Half'"):
        host.type("torch.cuda.Half")
    torch.set_default_tensor_type(torch.cuda.FloatTensor)
    assert torch.zeros(1).is_cuda
    torch.set_default_tensor_type("torch.FloatTensor")
    assert not torch.zeros(1).is_cuda


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


def test_parts_on_devices(gpu):
    from torch.nn.parallel import comm, data_parallel, replicate

    assert torch.device(0) == gpu
    x = torch.arange(6.0).view(3, 2)
    parts = comm.scatter(x, [0, 0])
    assert [part.tolist() for part in parts] == [[[0, 1], [2, 3]], [[4, 5]]] and all(part.is_cuda for part in parts)
    assert torch.equal(comm.gather(parts, destination="cpu"), x) and comm.gather(parts).device == gpu
    out = [torch.empty(3, 1, device="cuda") for _ in range(2)]
    comm.scatter(x, out=out, dim=-1)
    assert [one.flatten().tolist() for one in out] == [[0, 2, 4], [1, 3, 5]]
    assert all(one.is_cuda for one in comm.broadcast(x, [0, 0]))
    assert len(comm.broadcast_coalesced([x, x[0]], [0])[0]) == 2
    assert comm.broadcast(x.cuda(), out=[torch.empty(3, 2, device="cuda")])[0].tolist() == x.tolist()
    for call, text in ((lambda: comm.scatter(x, [0], [3, 1]), "to be of same length"),
                       (lambda: comm.scatter(x, out=out), "incorrect shape"),
                       (lambda: comm.gather([x]), "tensor at index 0 has device 'cpu'"),
                       (lambda: comm.gather(parts, out=torch.empty(3, 3)), "Expected out tensor to have shape")):
        with pytest.raises(RuntimeError, match=text):
            call()
    layer = torch.nn.Linear(2, 2).cuda()
    assert replicate(layer, [0])[0].weight.is_cuda and data_parallel(layer, x.cuda(), [0]).is_cuda


def test_memory_that_is_shared_with_others():
    x = torch.arange(3.0, device="cuda")
    assert tuple(map(int, x.__dlpack_device__())) == (10, 0) and tuple(map(int, x.cpu().__dlpack_device__())) == (1, 0)
    with pytest.raises((BufferError, RuntimeError), match="Unsupported device"):
        numpy.from_dlpack(x)
    with pytest.raises(BufferError, match=r"__dlpack__: a tensor on cuda:0 has no memory on device \(1, 0\)"):
        x.__dlpack__(dl_device=(1, 0))
    for how in (torch.from_dlpack, lambda one: torch.from_dlpack(torch.to_dlpack(one)),
                lambda one: torch.utils.dlpack.from_dlpack(one.__dlpack__(stream=0))):
        x = torch.arange(3.0, device="cuda")
        shared = how(x)
        shared += 1
        assert shared.is_cuda and x.tolist() == [1, 2, 3]
    assert not torch.from_dlpack(torch.to_dlpack(torch.ones(2))).is_cuda
    host = torch.from_dlpack(x, device="cpu")
    host += 1
    assert not host.is_cuda and x.tolist() == [1, 2, 3]
    array = x.numpy(force=True)
    array += 1
    assert x.tolist() == [1, 2, 3]


def test_streams_have_handles(gpu):
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    assert stream != other and stream.cuda_stream != other.cuda_stream != 0
    assert torch.cuda.default_stream().cuda_stream == 0 and repr(stream).startswith("<torch.cuda.Stream device=cuda:0")
    twin = torch.cuda.Stream(stream_id=stream.stream_id, device_index=0, device_type=stream.device_type)
    assert twin == stream and hash(twin) == hash(stream) and twin.cuda_stream == stream.cuda_stream
    with stream, other, stream:
        assert torch.cuda.current_stream() == stream
        assert torch._C._cuda_getCurrentRawStream(0) == stream.cuda_stream
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch._C._cuda_setStream(stream_id=other.stream_id, device_index=0, device_type=1)
    assert torch.cuda.current_stream() == other
    torch.cuda.set_stream(torch.cuda.default_stream())
    made = ctypes.c_void_p()
    session.load().hipStreamCreate(ctypes.byref(made))
    outside = torch.cuda.ExternalStream(made.value)
    with torch.cuda.stream(outside):
        assert torch.cuda.current_stream().cuda_stream == made.value and isinstance(outside, torch.cuda.Stream)
    session.load().hipStreamDestroy(made)
    for wrong in ({"stream_id": 99999, "device_index": 0, "device_type": 1},
                  {"stream_id": 0, "device_index": 9, "device_type": 1},
                  {"stream_id": 0, "device_index": 0, "device_type": 9}):
        with pytest.raises(RuntimeError):
            torch.cuda.Stream(**wrong)
    event = torch.cuda.Event()
    assert event.device is None and event.cuda_event == 0 and "uninitialized" in repr(event)
    stream.record_event(event)
    assert event.device == gpu and event.cuda_event
    with pytest.raises(NotImplementedError, match="ipc_handle"):
        event.ipc_handle()


def test_lower_names(gpu):
    with torch.accelerator.device_index(0):
        assert torch.accelerator.current_device_index() == torch._C._cuda_getDevice() == 0
    assert torch.bfloat16 in torch.accelerator.get_device_capability()["supported_dtypes"]
    assert torch.backends.cuda.is_built() and torch.cuda.get_allocator_backend() == "native"
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    torch.cuda._sleep(4_200_000)  # 2 ms at 2.1 GHz
    end.record()
    assert start.elapsed_time(end) >= 2
    torch.set_autocast_enabled(device_type="cuda", enabled=True)
    assert torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", False)
    x, graph = torch.zeros(2, device="cuda"), torch.accelerator.Graph()
    with torch.Stream(device="cuda"), graph:
        x += 1
    graph.replay()
    assert x.tolist() == [1, 1]
    with pytest.raises(UnsupportedError, match=r"get_gencode_flags .*--offload-arch=gfx942"):
        torch.cuda.get_gencode_flags()
    assert torch.cuda.memory_allocated(torch.cuda.device(0)) == torch.cuda.memory_allocated("cuda:0")
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        torch.cuda.current_stream(torch.device("cpu"))
    assert torch.cuda.get_device_capability((0, 304)) == (9, 4)  # torch takes what it does not know as the current one


def test_results_of_functions_of_c():
    x, layer = torch.ones(2, 3, device="cuda"), torch.nn.Linear(3, 3).cuda()
    assert torch.jit.script(layer)(x).is_cuda and torch.jit.trace(layer, x)(x).is_cuda
    assert not torch.jit.script(torch.nn.Linear(3, 3))(torch.ones(2, 3)).is_cuda
    for layout in (torch.strided, torch.jagged):
        for nested in (torch.nested.nested_tensor([x, x[:1]], layout=layout),
                       torch.nested.nested_tensor([torch.ones(2, 3)], layout=layout, device="cuda"),
                       torch.nested.as_nested_tensor([x, x[:1]], layout=layout)):
            assert nested.is_cuda and (2 * nested).is_cuda and nested.unbind()[0].is_cuda
        assert not torch.nested.nested_tensor([torch.ones(2, 3)], layout=layout).is_cuda


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


def test_functions_of_the_runtime():
    runtime, host = torch.cuda.cudart(), torch.ones(20)
    torch.cuda.check_error(runtime.cudaHostRegister(host.data_ptr(), 80, 0))
    assert host.is_pinned() and host[3:].is_pinned()
    torch.cuda.check_error(runtime.cudaHostUnregister(host.data_ptr()))
    assert not host.is_pinned()
    with pytest.raises(RuntimeError, match="memory is not registered"):
        torch.cuda.check_error(runtime.cudaHostUnregister(host.data_ptr()))
    assert runtime.cudaMemGetInfo(0) == torch.cuda.mem_get_info()
    with torch.cuda.profiler.profile():
        assert runtime.cudaError.success == 0


def test_types_of_autocasting():
    assert torch.get_autocast_dtype("cuda") == torch.get_autocast_gpu_dtype() == torch.float16
    x = torch.ones(2, 2, device="cuda")
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    with torch.autocast("cuda"):
        assert (x @ x).dtype == torch.get_autocast_dtype("cuda") == torch.bfloat16
    torch.set_autocast_dtype("cuda", torch.float16)
    with torch.autocast("cuda"):
        assert (x @ x).dtype == torch.float16
