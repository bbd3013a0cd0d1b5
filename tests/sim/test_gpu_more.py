# SPDX-License-Identifier: MIT
"""More of what programs ask of torch within sim.as_gpu(): storages, pools, determinism, products of 8-bit numbers,
profiles, compiled modules, exported programs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention
from torch.profiler import ProfilerActivity, profile, schedule

from aiter_like import sim
from aiter_like.errors import UnsupportedError


@pytest.fixture(autouse=True)
def gpu():
    with sim.as_gpu():
        yield


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_storages_say_where_they_are():
    x = torch.arange(4., device="cuda:0")
    storage = x.untyped_storage()
    assert storage.device == x.device and storage.is_cuda and storage.get_device() == 0
    assert storage.clone().device == copy.deepcopy(x).untyped_storage().device == x.device
    assert storage.cpu().device == storage.to(device="cpu").device == torch.device("cpu")
    assert storage.to(device="cuda:0") is storage and torch.ones(2).untyped_storage().to(device="cuda").is_cuda
    assert x.storage().device == x.device and x.cpu().untyped_storage().device == torch.device("cpu")
    assert torch.tensor([], device="cuda").set_(storage.clone(), 0, (4,)).equal(x)


def test_pools_of_memory():
    pool, other = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(1000, device="cuda")
        with torch.cuda.use_mem_pool(other, "cuda:0"):
            y = torch.ones(10, device="cuda")
        z = x + 1
        assert pool.use_count() == 2
    torch.ones(5, device="cuda")
    assert sorted(one["address"] for one in pool.snapshot()) == sorted((x.data_ptr(), z.data_ptr()))
    assert [one["address"] for one in other.snapshot()] == [y.data_ptr()]
    assert pool.id != other.id and pool.use_count() == 1
    with pytest.raises(UnsupportedError, match="MemPool has no allocator of its own"):
        torch.cuda.MemPool(object())


@pytest.mark.parametrize(("name", "call"), [
    ("kthvalue CUDA", lambda x: x.kthvalue(1)),
    ("_histc_cuda with floating point input", lambda x: torch.histc(x, bins=3)),
    ("median CUDA with indices output", lambda x: x.median(0)),
    ("_bincount_cuda", lambda x: torch.bincount(x.long().abs().flatten(), x.flatten())),
    ("nll_loss2d_forward_out_cuda_template",
     lambda x: functional.cross_entropy(x[None, :, :, None], torch.zeros(1, 4, 1, dtype=torch.long, device=x.device)))])
def test_what_is_not_deterministic_on_a_gpu(deterministic, name, call):
    x = torch.randn(4, 4)
    if name != "_bincount_cuda":
        call(x)  # it is on the host
    with pytest.raises(RuntimeError, match=f"^{name} does not have a deterministic implementation"):
        call(x.cuda())
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match=f"^{name} does not have"):
        call(x.cuda())


@pytest.mark.parametrize(("name", "call"), [
    ("adaptive_avg_pool2d_backward_cuda", lambda x: functional.adaptive_avg_pool2d(x, 2)),
    ("upsample_bicubic2d_backward_out_cuda", lambda x: functional.interpolate(x, scale_factor=2, mode="bicubic")),
    ("reflection_pad2d_backward_cuda", lambda x: functional.pad(x, (1, 1, 1, 1), mode="reflect")),
    ("max_pool3d_with_indices_backward_cuda", lambda x: functional.max_pool3d(x[None], 2)),
    ("embedding_bag_backward_cuda_max",
     lambda x: functional.embedding_bag(torch.zeros(1, 1, dtype=torch.long, device=x.device), x[0, 0], mode="max")),
    ("grid_sampler_2d_backward_cuda",
     lambda x: functional.grid_sample(x, torch.zeros(1, 2, 2, 2, device=x.device), align_corners=False))])
def test_backward_passes_that_are_not_deterministic(deterministic, name, call):
    x = torch.rand(1, 2, 4, 4, requires_grad=True)
    call(x).sum().backward()
    y = call(x.detach().cuda().requires_grad_())
    with pytest.raises(RuntimeError, match=f"^{name} does not have a deterministic implementation"):
        y.sum().backward()
    torch.use_deterministic_algorithms(False)
    call(x.detach().cuda().requires_grad_()).sum().backward()


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


def test_products_whose_results_are_wider():
    a, b = torch.randn(2, 4, 8, device="cuda").bfloat16(), torch.randn(2, 8, 4, device="cuda").bfloat16()
    added = torch.randn(2, 4, 4, device="cuda")
    expected, out = a.float() @ b.float(), added.clone()
    assert torch.equal(torch.mm(a[0], b[0], out_dtype=torch.float32), expected[0])
    assert torch.equal(torch.bmm(a, b, out_dtype=torch.bfloat16), a @ b)
    torch.testing.assert_close(torch.addmm(added[0], a[0], b[0], out_dtype=torch.float32, alpha=2),
                               added[0] + 2 * expected[0])
    assert torch.baddbmm(out, a, b, out_dtype=torch.float32, out=out) is out and out.is_cuda
    torch.testing.assert_close(out, added + expected)
    with pytest.raises(RuntimeError, match="out_dtype must be the same as input dtype or fp32"):
        torch.mm(a[0], b[0], out_dtype=torch.float16)
    with pytest.raises(RuntimeError, match="derivative for aten::mm is not implemented"):
        torch.mm(a[0].requires_grad_(), b[0], out_dtype=torch.float32).sum().backward()
    with pytest.raises(NotImplementedError, match=r"mm.dtype' with arguments from the 'CPU' backend"):
        torch.mm(a[0].cpu(), b[0].cpu(), out_dtype=torch.float32)


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


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_gradients_of_flex_attention():
    q, k, v = (torch.randn(1, 1, 4, 8, device="cuda", requires_grad=True) for _ in range(3))
    flex_attention(q, k, v).sum().backward()
    expected = torch.autograd.grad(nn.functional.scaled_dot_product_attention(q, k, v).sum(), q)
    assert q.grad.is_cuda
    torch.testing.assert_close(q.grad, expected[0])


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


def test_compiled_modules_are_wrapped():
    model = nn.Linear(4, 4).cuda()
    compiled = torch.compile(model, mode="max-autotune")
    assert compiled._orig_mod is model and list(compiled.state_dict())[0] == "_orig_mod.weight"
    x = torch.ones(2, 4, device="cuda")
    compiled(x).sum().backward()
    assert model.weight.grad.is_cuda and compiled(x).equal(model(x))
    assert torch.compile(dynamic=True)(torch.sin)(x).is_cuda
    torch._dynamo.reset()


def test_types_that_the_cpu_lacks():
    counts = torch.histc(torch.tensor([0, 1, 1, 3, 3, 3], device="cuda", dtype=torch.int32), bins=4, min=0, max=3)
    assert counts.is_cuda and counts.dtype == torch.int32 and counts.tolist() == [1, 2, 0, 3]
    x = torch.rand(1, 2, 2, 2, 2, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    found = functional.avg_pool3d(x, 2)
    torch.testing.assert_close(found, functional.avg_pool3d(x.float(), 2).bfloat16())
    found.sum().backward()
    assert found.is_cuda and x.grad.dtype == torch.bfloat16
    with pytest.raises(NotImplementedError, match="not implemented for 'BFloat16'"):
        functional.avg_pool3d(x.detach().cpu(), 2)
    with pytest.raises(NotImplementedError, match="not implemented for 'Int'"):
        torch.histc(torch.tensor([1], dtype=torch.int32))


def test_exported_and_saved_programs(tmp_path):
    """Both end in torch's C++, which in the first case ended the process."""
    model, x = nn.Linear(2, 2).cuda(), torch.ones(1, 2, device="cuda")
    exported = torch.export.export(model, (x,)).module()
    assert exported(x).is_cuda and exported(x).equal(model(x))
    torch.jit.trace(model, x).save(tmp_path / "traced.pt")
    loaded = torch.jit.load(tmp_path / "traced.pt", map_location="cuda")
    assert loaded(x).is_cuda and all(one.is_cuda for one in loaded.parameters())
    assert not next(torch.jit.load(tmp_path / "traced.pt").parameters()).is_cuda
    before = torch.cuda.memory_allocated()
    with FakeTensorMode():
        fake = nn.Linear(1 << 20, 1 << 20, device="cuda")
        fake(torch.ones(1, 1 << 20, device="cuda")).sum().backward()
    assert torch.cuda.memory_allocated() == before


def test_memory_for_other_libraries():
    x = torch.arange(6, dtype=torch.int16, device="cuda").view(2, 3)
    assert x.t().__cuda_array_interface__ == {"typestr": "<i2", "shape": (3, 2), "strides": (2, 6), "version": 2,
                                              "data": (x.data_ptr(), False)}
    assert x.__cuda_array_interface__["strides"] is None and not hasattr(x.cpu(), "__cuda_array_interface__")
    with pytest.raises(RuntimeError, match="requires grad"):
        _ = torch.ones(1, device="cuda", requires_grad=True).__cuda_array_interface__


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


def test_batch_norm_over_several_gpus():
    """What torch.nn.SyncBatchNorm calls: two ranks' sums give what one process has of all values."""
    x = torch.randn(6, 3, 4, device="cuda", requires_grad=True)
    weight, bias = (torch.rand(3, device="cuda", requires_grad=True) for _ in range(2))
    running = [torch.zeros(3, device="cuda"), torch.ones(3, device="cuda")]
    expected = functional.batch_norm(x, *(one.clone() for one in running), weight, bias, True, 0.1, 1e-5)
    dy = torch.randn_like(expected)
    expected.backward(dy)
    expected_running = [one.clone() for one in running]
    functional.batch_norm(x, *expected_running, None, None, True, 0.1, 1e-5)
    with torch.no_grad():
        means, invstds = zip(*(torch.batch_norm_stats(one, 1e-5) for one in (x[:2], x[2:])), strict=True)
        counts = torch.tensor([8., 16.], device="cuda")
        mean, invstd = torch.batch_norm_gather_stats_with_counts(x, torch.stack(means), torch.stack(invstds), *running,
                                                                 0.1, 1e-5, counts)
        found = torch.batch_norm_elemt(x, weight, bias, mean, invstd, 1e-5)
        sums = torch.batch_norm_backward_reduce(dy, x, mean, invstd, weight, True, True, True)
        dx = torch.batch_norm_backward_elemt(dy, x, mean, invstd, weight, *sums[:2], counts.int())
        same = torch.batch_norm_gather_stats(x, mean[None], invstd[None], None, None, 0.1, 1e-5, count=24)
    torch.testing.assert_close(same, (mean, invstd))
    assert all(one.is_cuda for one in (found, dx, *sums))
    torch.testing.assert_close([found, dx, *sums[2:], *running], [expected, x.grad, weight.grad, bias.grad,
                                                                  *expected_running])
    with pytest.raises(NotImplementedError, match="batch_norm_stats"):
        torch.batch_norm_stats(torch.ones(2, 3), 1e-5)


def test_errors_of_the_runtime_by_number():
    torch.cuda.check_error(0)
    with pytest.raises(torch.cuda.CudaError, match=r"out of memory \(2\)"):
        torch.cuda.check_error(2)


def test_memory_of_a_gpu_is_shared():
    assert torch.ones(1, device="cuda").is_shared() and not torch.ones(1).is_shared()


@pytest.mark.parametrize("call", [torch.isin, torch.hypot, torch.searchsorted, torch.bucketize,
                                  lambda x, y: x.masked_fill_(y > 1, 0), lambda x, y: x.index_fill(0, y.long(), 0)])
def test_two_devices_in_one_call(call):
    x = torch.tensor([1., 2.])
    call(x.cuda(), x.cuda() - 1)
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu"):
        call(x.cuda(), x - 1)


def test_a_loss_that_a_gpu_does_not_autocast():
    x = torch.rand(3, device="cuda")
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="BCELoss are unsafe to autocast"):
        nn.BCELoss()(x, x)
    nn.BCELoss()(x, x)


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

    with torch.autograd.profiler.emit_nvtx():
        Without.apply(x.cpu()).sum().backward()  # no gradient goes back to the GPU
    assert x.grad is None


def test_what_is_deterministic_on_a_gpu(deterministic):
    x = torch.rand(1, 2, 4, 4, device="cuda", requires_grad=True)
    functional.pad(x.cumsum(2), (1, 1, 1, 1), mode="replicate").sum().backward()
    assert x.grad.is_cuda
    at = torch.zeros(1, dtype=torch.long)
    with pytest.raises(RuntimeError, match="^put_ does not have a deterministic implementation"):
        torch.zeros(2, device="cuda").put_(at.cuda(), torch.ones(1, device="cuda"), accumulate=True)
    torch.zeros(2).put_(at, torch.ones(1), accumulate=True)


def test_margins_of_several_labels_in_16_bits():
    x, target = torch.rand(2, 3, device="cuda"), torch.tensor([[0, 1, -1], [2, -1, -1]], device="cuda")
    found = functional.multilabel_margin_loss(x.half(), target)
    torch.testing.assert_close(found, functional.multilabel_margin_loss(x.half().float(), target).half())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_tensor_like_another_ones_type_goes_where_that_is(dtype):
    x, other = torch.ones(2), torch.ones(1, dtype=dtype, device="cuda")
    assert x.type_as(other).device == other.device and not x.is_cuda and x.type_as(other).dtype == dtype
    assert not other.type_as(x).is_cuda and other.type_as(other) is other
