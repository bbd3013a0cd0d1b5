# SPDX-License-Identifier: MIT
"""sim.as_gpu(): torch's "cuda" is the simulated MI300X within the block, and nothing of it is left afterwards."""

import logging
import multiprocessing.spawn
import pickle
import threading
from dataclasses import replace

import numpy
import pytest
import torch

import aiter_like
from aiter_like import sim
from aiter_like.sim import settings
from aiter_like.sim.torch_cuda import names

GPU = torch.device("cuda", 0)
ON_GPU = {
    "factory": lambda: torch.ones(2, device="cuda"),
    "number": lambda: torch.ones(2, device=0),
    "like": lambda: torch.empty_like(torch.ones(2), device="cuda:0"),
    "new": lambda: torch.ones(2, device=GPU).new_zeros(3),
    "cuda": lambda: torch.ones(2).cuda(),
    "to": lambda: torch.ones(2).to("cuda", torch.int32, True),
    "to by name": lambda: torch.ones(2).to(device=torch.device("cuda")),
    "to a number": lambda: torch.ones(2).to(0),
    "to another": lambda: torch.ones(2).to(torch.ones(1, device="cuda")),
    "type": lambda: torch.ones(2, device="cuda").to(torch.float16),
    "array": lambda: torch.as_tensor(numpy.ones(2), device="cuda"),
    "sum": lambda: torch.ones(()) + torch.ones(2, device="cuda"),
    "view": lambda: torch.ones(4, device="cuda").view(2, 2)[0].detach(),
    "several": lambda: torch.ones(4, device="cuda").topk(2)[1],
    "out": lambda: torch.neg(torch.ones(2, device=0), out=torch.empty(2, device="cuda")),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2, device="cuda")),
    "module": lambda: torch.nn.Linear(2, 2).to("cuda").weight,
    "module to by name": lambda: torch.nn.Linear(2, 2).to(device="cuda:0", dtype=torch.float16).weight,
    "module's device": lambda: torch.nn.Linear(2, 2, device="cuda").bias,
    "sparse": lambda: torch.eye(2, device="cuda").to_sparse(),
    "operation": lambda: torch.ops.aten.mul(torch.ones(2, device="cuda"), 2),
}
ON_HOST = {
    "factory": lambda: torch.ones(2),
    "cpu": lambda: torch.ones(2, device="cuda").cpu(),
    "to": lambda: torch.ones(2, device="cuda").to("cpu"),
    "as": lambda: torch.as_tensor(torch.ones(2, device="cuda"), device="cpu"),
    "to another": lambda: torch.ones(2, device="cuda").to(torch.ones(1)),
    "like": lambda: torch.empty_like(torch.ones(2, device="cuda"), device="cpu"),
    "out": lambda: torch.ones(2).copy_(torch.ones(2, device="cuda")),
    "values": lambda: torch.full((2,), torch.ones((), device="cuda").item()),
    "pinned": lambda: torch.ones(2, pin_memory=True),
}


@pytest.mark.parametrize("how", ON_GPU)
def test_on_the_gpu(gpu, how):
    tensor = ON_GPU[how]()
    assert tensor.device == gpu == GPU and tensor.is_cuda and not tensor.is_cpu and tensor.get_device() == 0


@pytest.mark.parametrize("how", ON_HOST)
def test_on_the_host(gpu, how):
    tensor = ON_HOST[how]()
    assert tensor.device.type == "cpu" and not tensor.is_cuda and tensor.is_cpu


def test_host_and_gpu_have_no_common_memory(gpu):
    host, array = torch.zeros(3), numpy.zeros(3)
    for there in (host.cuda(), host.to("cuda"), torch.as_tensor(host, device="cuda"),
                  torch.as_tensor(array, device="cuda")):
        there += 1
        back = [there.cpu(), there.to("cpu"), torch.as_tensor(there, device="cpu")]
        there += 1
        assert [one.tolist() for one in (*back, there)] == [[1.0] * 3] * 3 + [[2.0] * 3]
        assert there.cuda() is there and there.to("cuda") is there
    assert host.tolist() == array.tolist() == [0.0] * 3
    for read in (torch.Tensor.numpy, numpy.asarray):
        with pytest.raises(TypeError, match=r"cuda:0 .* Tensor\.cpu\(\)"):
            read(there)
    with pytest.raises(AssertionError, match="device"):
        torch.testing.assert_close(there, there.cpu())


def test_default_devices_and_threads():
    with sim.as_gpu():
        with torch.device("cuda"):
            assert torch.zeros(2).is_cuda and torch.tensor([1]).is_cuda and not torch.zeros(2, device="cpu").is_cuda
        assert not torch.zeros(2).is_cuda
        torch.set_default_device("cuda")
        assert torch.zeros(2).is_cuda and torch.get_default_device() == GPU
        assert torch.nn.MultiheadAttention(4, 1)(*[torch.ones(1, 2, 4)] * 3)[0].is_cuda
        found = []
        thread = threading.Thread(target=lambda: found.append(torch.ones(2).cuda().is_cuda))
        thread.start()
        thread.join()
        assert found == [True]
    assert torch.get_default_device() == torch.zeros(2).device == torch.device("cpu")


@pytest.mark.parametrize("method", ("spawn", pytest.param("forkserver", marks=pytest.mark.exhaustive)))
def test_child_processes(method):
    with sim.as_gpu(), multiprocessing.get_context(method).Pool(1) as pool:
        told = pool.apply(eval, ("(lambda torch: [torch.cuda.is_available(), str(torch.ones(1, device=0).device)])"
                                 "(__import__('torch'))",))
        shared = torch.arange(3.0, device="cuda")
        doubled = pool.apply(torch.Tensor.mul_, (shared, 2))
        assert doubled.is_cuda and doubled.tolist() == shared.tolist() == [0, 2, 4]
        assert not pool.apply(torch.neg, (torch.ones(1),)).is_cuda
    assert told == [True, "cuda:0"]
    assert "aiter_like" not in multiprocessing.spawn.get_preparation_data("a child outside")


def test_training(gpu):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1)).cuda()
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=0.05), torch.amp.GradScaler("cuda")
    x = torch.randn(16, 4, device="cuda", generator=torch.Generator(device="cuda").manual_seed(1))
    losses = []
    for _ in range(8):
        with torch.autocast("cuda", enabled=False):
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        assert all(one.grad.is_cuda for one in model.parameters())
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0] and not torch.is_autocast_enabled("cuda")
    assert torch.compile(model)(x).shape == (16, 1) and torch.compile(dynamic=True)(torch.sin)(x).is_cuda


_INDICES = torch.arange(4000) % 7


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
@pytest.mark.parametrize("function, shapes", (
    (lambda x, w, b: torch.nn.functional.layer_norm(x, (33,), w, b), ((1151, 33), (33,), (33,))),
    (lambda x, w: torch.layer_norm(x, (33,), weight=w), ((1151, 33), (33,))),
    (lambda w: torch.nn.functional.embedding(_INDICES.to(w.device), w), ((7, 33),)),
    (lambda x: x.prod(0), ((91, 33),)),
    (lambda x: torch.prod(x), ((99,),)),
), ids=("layer_norm", "torch's layer_norm", "embedding", "prod", "prod of all"))
def test_sums_of_16_bits_are_float32(gpu, function, shapes, dtype):
    def results(arguments):
        arguments = [one.clone().requires_grad_() for one in arguments]
        out = function(*arguments)
        out.backward((torch.arange(out.numel()) % 5 - 1).view(out.shape).to(out))
        return [out.detach(), *(one.grad for one in arguments)]

    torch.manual_seed(0)
    host = [(torch.randn(shape) / 32 + 1).to(dtype) for shape in shapes]
    found, expected = results([one.cuda() for one in host]), results([one.double() for one in host])
    assert all(one.is_cuda and one.dtype == dtype for one in found)
    for one, wide in zip(found, expected, strict=True):
        error = (one.cpu().double() - wide).abs().max() / wide.abs().max()
        assert error < 1.5 * torch.finfo(dtype).eps


def test_other_calls_stay_the_cpus(gpu):
    x, table = torch.randn(4, 8, dtype=torch.float16), torch.randn(5, 8, dtype=torch.float16, device="cuda")
    assert not torch.nn.functional.layer_norm(x, (8,)).is_cuda
    assert torch.prod(x.cuda(), 0, dtype=torch.float32).dtype == torch.float32
    index = torch.tensor([0, 1, 1], device="cuda")
    assert torch.nn.functional.embedding(index, table, max_norm=0.5).norm(dim=1).max() < 0.51
    assert table[:2].norm(dim=1).max() < 0.51, "max_norm writes the table itself"
    weight = table.clone().requires_grad_()
    torch.nn.functional.embedding(index, weight, sparse=True).sum().backward()
    assert weight.grad.is_sparse


def test_operators(gpu):
    x, weight = torch.randn(3, 256, dtype=torch.bfloat16, device="cuda"), torch.ones(256, dtype=torch.bfloat16).cuda()
    y = aiter_like.rms_norm(x, weight, 1e-6)
    assert y.is_cuda and "gfx942" in str(aiter_like.explain(aiter_like.rms_norm, x, weight, 1e-6))
    wide = x.double()
    torch.testing.assert_close(y, (wide / (wide.square().mean(1, keepdim=True) + 1e-6).sqrt()).bfloat16())
    with pytest.raises(ValueError, match="weight"):
        aiter_like.rms_norm(x, weight.cpu(), 1e-6)
    out, generator = torch.empty(2, 300, device="cuda"), torch.Generator("cuda").manual_seed(5)

    def drawn() -> torch.Tensor:
        aiter_like.exponential(out, generator=generator)
        return out.cpu()

    first, second = drawn(), drawn()
    assert generator.get_offset() > 0 and not torch.equal(first, second)
    generator.manual_seed(5)
    assert torch.equal(first, drawn())
    aiter_like.exponential(out)
    assert (out > 0).all()


def test_what_torch_cuda_tells(gpu):
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    assert facts.gcnArchName.startswith("gfx942") and facts.multi_processor_count == 304
    assert facts.warp_size == 64 and "simulated" in facts.name == torch.cuda.get_device_name()
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.version.hip
    assert torch.cuda.get_device_capability() == (9, 4) and torch.cuda.is_bf16_supported()
    assert torch.accelerator.current_accelerator().type == "cuda" and torch.accelerator.device_count() == 1
    with torch.cuda.stream(torch.cuda.Stream()) as _, torch.cuda.device(0):
        stream = torch.cuda.current_stream()
        assert stream != torch.cuda.default_stream() and stream.query()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    with pytest.raises(RuntimeError, match=r"no device cuda:1: 1 are simulated.*devices=N"):
        torch.ones(1, device="cuda:1")
    with pytest.raises(ValueError, match="cpu"):
        torch.cuda.set_device("cpu")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_histc_of_integers_counts_in_their_type(gpu, dtype):
    """A GPU has it, the CPU has not."""
    values = torch.arange(60, dtype=dtype) % 13
    with pytest.raises(NotImplementedError):
        torch.histc(values, 13, 0, 12)
    x = values.cuda()
    found = torch.histc(x, bins=13, max=12)
    assert found.is_cuda and found.dtype == dtype and torch.equal(found.cpu(), torch.bincount(values).to(dtype))
    assert torch.equal(x.histc(4, min=3.9, max=7), torch.tensor([5, 5, 5, 10], dtype=dtype, device="cuda"))  # 3, …, 7
    assert torch.equal(x.histc(13), found) and x[:0].histc(2).tolist() == [0, 0]


def test_memory_is_counted(gpu):
    before = torch.cuda.memory_allocated()
    tensor = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    part, host = tensor[:10], tensor.cpu()
    assert torch.cuda.memory_allocated() - before == 1 << 20 and host.numel() == 1 << 20
    free, total = torch.cuda.mem_get_info()
    assert total == 192 << 30 and total - free >= 1 << 20
    del tensor
    assert torch.cuda.memory_allocated() - before == 1 << 20  # its view has it
    del part
    assert torch.cuda.memory_allocated() == before and torch.cuda.max_memory_allocated() >= before + (1 << 20)
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == before
    pinned = torch.ones(3).pin_memory()
    assert pinned.is_pinned() and not torch.ones(3).is_pinned() and pinned.cuda(non_blocking=True).is_cuda


def test_files(gpu, tmp_path):
    torch.save({"a": torch.arange(3.0, device="cuda")}, tmp_path / "file")
    for place in ("cuda", GPU, {"cuda:0": "cuda"}):
        found = torch.load(tmp_path / "file", map_location=place)["a"]
        assert found.is_cuda and found.tolist() == [0, 1, 2]
    assert torch.load(tmp_path / "file")["a"].is_cuda and pickle.loads(pickle.dumps(found)).is_cuda
    for place in ("cpu", {"cuda:0": "cpu"}, lambda storage, location: storage):
        assert not torch.load(tmp_path / "file", map_location=place)["a"].is_cuda


def test_times_say_what_they_are(gpu, caplog):
    x, weight = torch.randn(2, 256, dtype=torch.bfloat16, device="cuda"), torch.ones(256, dtype=torch.bfloat16).cuda()
    triton = pytest.importorskip("triton")
    with caplog.at_level(logging.WARNING, "aiter_like"):
        assert triton.testing.do_bench(lambda: aiter_like.rms_norm(x, weight, 1e-6)) > 0
        assert triton.testing.do_bench(lambda: None, quantiles=[0.5, 0.2]) is not None
    assert [one.getMessage() for one in caplog.records if "times between" in one.getMessage()] == [
        "simulated MI300X: times between events are this machine's, which simulates an MI300X, and no MI300X's; "
        "sim.enabled(model=...) gives modelled ones"]
    caplog.clear()
    with caplog.at_level(logging.WARNING, "aiter_like"), sim.enabled(False, model="whole") as session:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        aiter_like.rms_norm(x, weight, 1e-6)
        end.record()
        torch.cuda.synchronize()
        assert start.elapsed_time(end) == pytest.approx(session.modelled[-1]["modelled_us"] / 1e3)
    assert "are modelled" in caplog.text and "none is measured" in caplog.text
    with pytest.raises(ValueError, match="enable_timing"):
        torch.cuda.Event().elapsed_time(end)
    with pytest.raises(ValueError, match="recorded"):
        start.elapsed_time(torch.cuda.Event(enable_timing=True))


def test_triton_knows_the_device_by_the_same_number(gpu):
    pytest.importorskip("triton")
    from triton.runtime import driver

    assert driver.active.get_active_torch_device() == gpu and driver.active.get_device_interface() is torch.cuda
    assert {torch.cuda.current_device(): "kernels"}[driver.active.get_current_device()] == "kernels"


def test_nothing_is_left():
    before = {(id(holder), name): getattr(holder, name, None) for holder, name, _ in names.replacements()}
    start = threading.Thread.start
    with pytest.raises(KeyError), sim.as_gpu(), sim.as_gpu():
        x = torch.ones(2, device="cuda")
        torch.set_default_device("cuda")
        raise KeyError
    assert before == {(id(holder), name): getattr(holder, name, None) for holder, name, _ in names.replacements()}
    assert threading.Thread.start is start and torch.utils._device.CURRENT_DEVICE is None
    assert x.device.type == "cpu" and x.numpy().tolist() == [1, 1] and not torch.cuda.is_available()
    assert not torch.overrides._get_current_function_mode_stack()
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(2, device="cuda")


def test_refused_blocks(monkeypatch):
    found = []

    def enter() -> None:
        try:
            with sim.as_gpu():
                pass
        except RuntimeError as error:
            found.append(str(error))

    with sim.as_gpu():
        inner = threading.Thread(target=enter)
        inner.start()
        inner.join()
    assert not found, "threads of the block are in it"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a real one")
    enter()
    monkeypatch.undo()
    deferred = replace(settings.default_settings(), defer=True)
    monkeypatch.setattr(settings, "default_settings", lambda: deferred)
    enter()
    monkeypatch.undo()
    assert "a real one" in found[0] and "defer" in found[1]
    ready, done = threading.Event(), threading.Event()

    def hold() -> None:
        with sim.as_gpu():
            ready.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    enter()
    done.set()
    thread.join()
    assert "another thread" in found[2]
