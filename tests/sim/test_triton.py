# SPDX-License-Identifier: MIT
"""Triton's own launcher on the simulated MI300X: kernels on CPU tensors against torch, with every checker on."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys

import pytest
import torch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from aiter_like import sim  # noqa: E402
from aiter_like.errors import SimulatorError  # noqa: E402


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


@triton.jit
def unmasked_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * columns
    values = tl.load(x + row + at, at < columns, other=float("-inf"))
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row + at, powers / tl.sum(powers, 0), at < columns)


@triton.jit
def matmul_kernel(a, b, out, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        a_tile = tl.load(a + rows[:, None] * K + k[None, :], (rows[:, None] < M) & (k[None, :] < K), other=0.0)
        b_tile = tl.load(b + k[:, None] * N + columns[None, :], (k[:, None] < K) & (columns[None, :] < N), other=0.0)
        acc = tl.dot(a_tile, b_tile, acc, input_precision="ieee")
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(out + rows[:, None] * N + columns[None, :], acc.to(out.dtype.element_ty), inside)


@triton.jit
def histogram_kernel(x, counts, largest, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, at < n, other=0)
    tl.atomic_add(counts + values, 1, at < n)
    tl.atomic_max(largest, tl.max(values, 0))


@triton.jit
def scale_pair_kernel(pair, factor, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(pair[1] + at, tl.load(pair[0] + at, at < n) * factor, at < n)


@pytest.fixture(autouse=True)
def checked(simulated_triton):
    with sim.enabled(checks=True):
        yield


def run_add(n: int, block: int = 256, **options: int) -> None:
    x, y, out = torch.randn(n), torch.randn(n), torch.full((n,), 7.0)
    add_kernel[(triton.cdiv(n, block),)](x, y, out, n, BLOCK=block, **options)
    torch.testing.assert_close(out, x + y, rtol=0, atol=0)


@pytest.mark.parametrize("n", [1, 63, 64, 1000, 4097])
def test_vector_add(n):
    run_add(n)


@pytest.mark.parametrize("num_warps", [1, 2, 4, 8])
def test_waves_per_workgroup(num_warps):
    run_add(3001, block=1024, num_warps=num_warps)
    x = torch.randn(3, 777)
    out = torch.empty_like(x)
    softmax_kernel[(3,)](x, out, 777, BLOCK=1024, num_warps=num_warps)
    torch.testing.assert_close(out, x.softmax(-1))


@pytest.mark.parametrize("columns", [1, 31, 64, 1000])
def test_softmax(columns):
    x = torch.randn(5, columns) * 4
    out = torch.empty_like(x)
    softmax_kernel[(5,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))
    torch.testing.assert_close(out, x.softmax(-1))


@pytest.mark.parametrize("dtype, shape, num_warps", [
    (torch.float16, (64, 64, 64), 4), (torch.bfloat16, (33, 70, 45), 4), (torch.bfloat16, (17, 129, 96), 8),
    (torch.float32, (40, 40, 40), 2), (torch.float16, (5, 3, 1), 1),
])
def test_matmul(dtype, shape, num_warps):
    m, n, k = shape
    a, b = torch.randn(m, k, dtype=dtype), torch.randn(k, n, dtype=dtype)
    out = torch.empty(m, n, dtype=dtype)
    grid = (triton.cdiv(m, 32), triton.cdiv(n, 32))
    matmul_kernel[grid](a, b, out, m, n, k, BLOCK_M=32, BLOCK_N=32, BLOCK_K=32, num_warps=num_warps)
    expected = a.double() @ b.double()
    rounding = torch.finfo(dtype).eps * expected.abs() + 1e-5 * k
    assert ((out.double() - expected).abs() <= rounding).all()


def test_atomics():
    x = torch.randint(0, 17, (3000,), dtype=torch.int32)
    counts, largest = torch.zeros(17, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    histogram_kernel[(triton.cdiv(3000, 512),)](x, counts, largest, 3000, BLOCK=512)
    assert counts.tolist() == torch.bincount(x, minlength=17).tolist() and largest.item() == x.max().item()


def test_tuples_of_tensors_and_null_arguments():
    x, out = torch.randn(100), torch.zeros(100)
    scale_pair_kernel[(1,)]((x, out), 1.5, 100, BLOCK=128)
    torch.testing.assert_close(out, x * 1.5, rtol=0, atol=0)


def test_a_programs_own_class_with_an_address():
    """What Triton takes: it has data_ptr and dtype. The checkers know the memory of the tensor in it, and its end."""
    class Window:
        def __init__(self, tensor: torch.Tensor, offset: int):
            self._wrapped, self.dtype, self.offset = tensor, tensor.dtype, offset

        def data_ptr(self) -> int:
            return self._wrapped.data_ptr() + 4 * self.offset

    x, out = torch.rand(96), torch.zeros(64)
    add_kernel[(1,)](Window(x, 32), triton.reinterpret(x, torch.float32), out, 64, BLOCK=64)
    assert torch.equal(out, x[32:] + x[:64])
    with pytest.raises(SimulatorError, match="4 bytes in lane"):
        add_kernel[(1,)](Window(x, 33), x, out, 64, BLOCK=64)


def test_an_empty_grid_runs_nothing():
    out = torch.zeros(4)
    unmasked_kernel[(0,)](out, out, BLOCK=4)
    assert out.count_nonzero() == 0


def test_an_access_beyond_a_tensor_names_kernel_and_argument():
    x, out = torch.randn(256), torch.randn(200)
    with pytest.raises(SimulatorError, match="unmasked_kernel") as raised:
        unmasked_kernel[(1,)](x, out, BLOCK=256)
    report = raised.value.reports[0]
    assert report["check"] == "bounds" and report["kernel"] == "unmasked_kernel"
    assert "unmasked_kernel argument 1 (200,)" in report["message"]


def test_a_failed_launch_is_a_simulator_error_with_and_without_checks():
    for checks in (True, False):
        with sim.enabled(checks=checks), pytest.raises(SimulatorError, match="unmasked_kernel.*endless") as raised, \
                sim.enabled(checks=checks, instruction_limit=3):
            unmasked_kernel[(1,)](torch.randn(64), torch.empty(64), BLOCK=64)
        assert raised.value.reports[0]["check"] == "launch"
    run_add(100)


def test_collected_reports_do_not_raise():
    with sim.enabled(on_report="collect") as session:
        unmasked_kernel[(1,)](torch.randn(256), torch.randn(200), BLOCK=256)
    assert {report["check"] for report in session.reports} == {"bounds"}


def test_counters_have_the_kernel():
    with sim.enabled(checks=False) as session:
        run_add(1000, block=256, num_warps=2)
    assert session.counters["add_kernel"]["workgroups"] == 4 and session.counters["add_kernel"]["waves"] == 8


def test_autotune_and_do_bench():
    tuned = triton.autotune([triton.Config({"BLOCK": block}) for block in (64, 256)], key=["n"],
                            do_bench=lambda call, quantiles: triton.testing.do_bench(call, 1, 1, quantiles=quantiles)
                            )(add_kernel)
    x, out = torch.randn(500), torch.zeros(500)
    with sim.enabled(checks=False):
        tuned[lambda meta: (triton.cdiv(500, meta["BLOCK"]),)](x, x, out, 500)
    assert torch.equal(out, 2 * x) and tuned.best_config.kwargs["BLOCK"] in (64, 256)


def test_enabling_is_idempotent_and_has_a_way_back():
    active = triton.runtime.driver.active
    sim.enable_triton()
    assert triton.runtime.driver.active is active
    assert active.get_current_target().arch == "gfx942" and active.get_active_torch_device().type == "cpu"
    sim.disable_triton()
    assert triton.runtime.driver._active is not active
    sim.disable_triton()
    sim.enable_triton()
    assert triton.runtime.driver.active is active
    run_add(10)


def test_nothing_is_switched_on_by_import_and_no_environment_is_left():
    program = """
import os, torch, triton, aiter_like
from aiter_like import sim
from aiter_like.sim.triton import SimulatorDriver
before, environment = triton.runtime.driver._active, dict(os.environ)
assert not isinstance(before, SimulatorDriver)
sim.enable_triton()
triton.runtime.driver.active.get_current_target()
sim.disable_triton()
assert dict(os.environ) == environment and triton.runtime.driver._active is before
"""
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ}, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr


def test_operators_leave_no_driver_behind():
    import aiter_like

    sim.disable_triton()
    x, weight = torch.randn(3, 128, dtype=torch.bfloat16), torch.ones(128, dtype=torch.bfloat16)
    aiter_like.rms_norm(x, weight, 1e-6, backend="triton")
    assert triton.runtime.driver._active is None


@triton.jit
def scalars_kernel(out, small, large, unsigned, number, flag):
    tl.store(out, small.to(tl.float64))
    tl.store(out + 1, large.to(tl.float64))
    tl.store(out + 2, unsigned.to(tl.float64))
    tl.store(out + 3, number.to(tl.float64))
    tl.store(out + 4, flag.to(tl.float64))


def test_scalars_of_every_type_arrive():
    out = torch.zeros(5, dtype=torch.float64)
    values = (-7, -(2**40), 2**63 + 2048, 0.5, True)
    scalars_kernel[(1,)](out, *values)
    assert out.tolist() == [float(value) for value in values]


def test_the_host_side_is_that_of_tritons_c_extension(monkeypatch):
    """Ours needs no C compiler; theirs is asked where there is one."""
    from triton import knobs
    from triton.backends.amd import driver as amd

    from aiter_like.sim import triton as sim_triton
    from aiter_like.sim import triton_host

    if not (shutil.which("gcc") or shutil.which("clang")) or not triton_host.is_usable():
        pytest.skip("Triton's own needs a C compiler")
    ours = sim_triton.simulator_driver().utils
    for name in ("PyKernelArg", "ARG_CONSTEXPR", "ARG_KERNEL", "ARG_TUPLE"):
        monkeypatch.setattr(amd, name, getattr(amd, name))  # theirs replaces them
    with knobs.amd.scope():
        knobs.amd.libhip_path = sim.load()._name
        theirs = amd.HIPUtils()
    assert ours.get_device_properties(0) == theirs.get_device_properties(0)
    compiled = add_kernel.warmup(torch.float32, torch.float32, torch.float32, 64, BLOCK=64, grid=(1,))
    binary = compiled.asm["hsaco"]
    assert ours.load_binary("add_kernel", binary, 0, 0)[2:] == theirs.load_binary("add_kernel", binary, 0, 0)[2:]


def test_hooks_hear_of_a_kernels_load_and_end_once(monkeypatch):
    """A module told of is one, is loaded once for several launches, and its end needs no driver."""
    from triton import knobs

    heard: list[tuple[str, bool, str]] = []
    for name in ("kernel_load_start_hook", "kernel_load_end_hook", "kernel_unload_hook", "launch_enter_hook"):
        monkeypatch.setattr(knobs.runtime, name, knobs.HookChain())
    for name in ("load_start", "load_end", "unload"):
        getattr(knobs.runtime, f"kernel_{name}_hook").add(
            lambda module, function, kernel, group, key, name=name: heard.append((name, module is not None, kernel)))
    knobs.runtime.launch_enter_hook.add(lambda metadata: heard.append(("launch", True, metadata.get()["name"])))
    kernel = triton.jit(add_kernel.fn)
    x, out = torch.ones(8), torch.zeros(8)
    for _ in range(2):
        compiled = kernel[(1,)](x, x, out, 8, BLOCK=8)
    assert [(name, is_one) for name, is_one, _ in heard] == [
        ("load_start", False), ("load_end", True), ("launch", True), ("launch", True)]
    sim.disable_triton()
    compiled.__del__()
    assert heard[4:] == [("unload", True, "add_kernel")] and compiled.module is None
    compiled.__del__()
    assert len(heard) == 5
    sim.enable_triton()
    assert kernel[(1,)](x, x, out, 8, BLOCK=8).module is not None  # loaded again


@pytest.mark.parametrize("level", ["ttir", "ttgir"])
def test_a_kernel_of_a_file_of_ir_runs_and_is_checked(tmp_path, level):
    x, out = torch.arange(64.0), torch.zeros(64)
    text = unmasked_kernel.warmup(x, out, BLOCK=64, grid=(1,)).asm[level]
    (tmp_path / f"unmasked.{level}").write_text(text)
    kernel = triton.compile(str(tmp_path / f"unmasked.{level}"))
    kernel[(1, 1, 1)](x, out)
    assert torch.equal(out, x)
    with pytest.raises(SimulatorError, match="unmasked_kernel argument 1"):
        kernel[(1, 1, 1)](x, out[:60].clone())


def test_as_gpu_refuses_tensors_of_the_host_in_tritons_words():
    with sim.as_gpu():
        x, out = torch.arange(64.0, device="cuda"), torch.zeros(64).pin_memory()
        unmasked_kernel[(1,)](x, out, BLOCK=64)  # a GPU reaches pinned memory
        assert torch.equal(out, x.cpu())
        with pytest.raises(ValueError, match=r"Pointer argument \(at 1\) cannot be accessed from Triton \(cpu t"):
            unmasked_kernel[(1,)](x, torch.zeros(64), BLOCK=64)
        memory = ctypes.c_void_p()
        assert sim.load().hipMalloc(ctypes.byref(memory), ctypes.c_size_t(256)) == 0
        allocated = torch.frombuffer((ctypes.c_float * 64).from_address(memory.value), dtype=torch.float32)
        unmasked_kernel[(1,)](x, allocated, BLOCK=64)
        assert torch.equal(allocated, x.cpu())
        sim.load().hipFree(memory)


def test_a_launch_of_a_compiled_kernel_without_its_constants_says_so():
    x, out = torch.randn(64), torch.zeros(64)
    compiled = unmasked_kernel[(1,)](x, out, BLOCK=64)
    compiled[(1, 1, 1)](x, out, 64)
    with pytest.raises(TypeError, match="takes 3 arguments, constants included, got 2"):
        compiled[(1, 1, 1)](x, out)


def test_an_expanded_tensor_reaches_to_the_end_of_its_memory():
    x, out = torch.randn(4, 16), torch.zeros(64)
    unmasked_kernel[(1,)](x.as_strided((2, 16), (0, 1)), out, BLOCK=64)
    assert torch.equal(out, x.view(-1))
    with pytest.raises(SimulatorError, match="past the end of `unmasked_kernel argument 0"):
        unmasked_kernel[(1,)](x[1:].expand(2, 3, 16), out, BLOCK=64)


@triton.jit
def table_kernel(table, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tl.store(out + tl.program_id(0) * BLOCK + at, tl.load(x + at, at < n))


def test_as_gpu_knows_the_memory_behind_a_table_of_pointers():
    with sim.as_gpu():
        parts = [torch.rand(64, device="cuda") for _ in range(3)]
        out, table = torch.zeros(3, 64, device="cuda"), torch.tensor([part.data_ptr() for part in parts], device="cuda")
        table_kernel[(3,)](table, out, 64, BLOCK=64)
        assert torch.equal(out, torch.stack(parts))
        with pytest.raises(SimulatorError, match=r"past the end of `table_kernel: memory that argument 0 points to`"):
            table_kernel[(3,)](table, torch.zeros(3, 128, device="cuda"), 65, BLOCK=128)
