# SPDX-License-Identifier: MIT
"""sim.as_gpu(): torch.cuda.graph, random numbers, and what Python code sees in a backward pass or of two devices."""

from __future__ import annotations

import pytest
import torch
import torch.utils.checkpoint
from torch.nn import functional

import aiter_like

pytestmark = pytest.mark.usefixtures("gpu")


@pytest.fixture(scope="module")
def twice():
    triton = pytest.importorskip("triton")
    import triton.language as tl

    @triton.jit
    def kernel(x, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, 2 * tl.load(x + at, at < n), at < n)

    kernel.fn.__globals__["tl"] = tl

    def run(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
        return out

    return run


def test_a_graph_of_operators_triton_and_torch(twice):
    x, weight = torch.ones(2, 256, dtype=torch.bfloat16, device="cuda"), torch.ones(256, dtype=torch.bfloat16).cuda()
    count, host = torch.zeros(1, device="cuda"), torch.zeros(1)
    graph = torch.cuda.CUDAGraph()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool), torch.cuda.graph(graph, pool=pool.id):
        assert torch.cuda.is_current_stream_capturing()
        count += 1
        host += 1
        y = aiter_like.rms_norm(twice(x * 3), weight, 1e-6)
        total = y.float().sum(1)[:1]
    assert count.item() == 0 and host.item() == 1, "the GPU's work has not run, and the host's has"
    for value in (1, -2):
        x.fill_(value)
        graph.replay()
        assert total.item() == 256 * (1 if value > 0 else -1) and y.is_cuda and total.is_cuda
    assert count.item() == 2 and host.item() == 1 and not torch.cuda.is_current_stream_capturing()
    graph.reset()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()


def test_a_whole_step_of_training():
    torch.manual_seed(0)
    model, reference = torch.nn.Linear(8, 4).cuda(), torch.nn.Linear(8, 4)
    reference.load_state_dict({name: value.cpu() for name, value in model.state_dict().items()})
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, reference)]
    x, graph = torch.zeros(3, 8, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = model(x).square().mean()
        loss.backward()
        optimizers[0].step()
        optimizers[0].zero_grad(set_to_none=False)
    for _ in range(3):
        data = torch.randn(3, 8)
        x.copy_(data)
        graph.replay()
        expected = reference(data).square().mean()
        expected.backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        torch.testing.assert_close(loss.cpu(), expected)
    torch.testing.assert_close(model.weight.cpu(), reference.weight)


def test_graphed_callables():
    layer, x = torch.nn.Linear(4, 4).cuda(), torch.randn(2, 4, device="cuda")
    expected = layer(x).detach().clone()
    layer = torch.cuda.make_graphed_callables(layer, (torch.randn(2, 4, device="cuda"),))
    out = layer(x)
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    torch.testing.assert_close(layer.weight.grad, x.sum(0).expand(4, 4))


def test_what_a_capture_does_not_permit():
    x, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
    for asks in (lambda: x.sum().item(), lambda: x.nonzero(), lambda: bool(x[0])):
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"), torch.cuda.graph(graph):
            x.add_(1)
            asks()
        assert x.tolist() == [1, 1, 1] and not torch.cuda.is_current_stream_capturing()
    for waits in (lambda: x.cpu(), lambda: torch.ones(3).cuda(), lambda: x.copy_(torch.ones(3)), torch.cuda.synchronize,
                  lambda: torch.tensor([1.0], device="cuda")):
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"), torch.cuda.graph(graph):
            waits()
    pinned = torch.full((3,), 2.0).pin_memory()
    with torch.cuda.graph(graph):
        y = x.copy_(pinned, non_blocking=True) + torch.zeros(3, device="cuda")
    graph.replay()
    assert x.tolist() == y.tolist() == [2, 2, 2]
    with torch.cuda.graph(graph), pytest.raises(RuntimeError, match="has begun already"):
        torch.cuda.CUDAGraph().capture_begin()
    with pytest.raises(RuntimeError, match="not capturing"):
        graph.capture_end()


def test_backward_passes_are_on_the_gpu(twice):
    seen = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return twice(x)

        @staticmethod
        def backward(ctx, grad):
            seen.extend([grad.is_cuda, ctx.saved_tensors[0].is_cuda, torch.empty(1, device=grad.device).is_cuda])
            return twice(grad.contiguous())

    x = torch.randn(70, device="cuda", requires_grad=True)
    x.register_hook(lambda grad: seen.append(grad.is_cuda))
    Twice.apply(x * 3).sum().backward()
    assert seen == [True] * 4 and x.grad.is_cuda and set(x.grad.tolist()) == {6.0}
    (grad,) = torch.autograd.grad(Twice.apply(x).square().sum(), x)
    torch.testing.assert_close(grad, 8 * x.detach())
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        y = (x * x).exp()
    y.sum().backward()
    host = torch.ones(2, requires_grad=True)
    host.register_hook(lambda grad: seen.append(grad.is_cuda))
    host.sum().backward()
    assert seen[-1] is False and not host.grad.is_cuda
    assert torch.func.vmap(lambda one: one * 2 if one.is_cuda else None)(x.detach()).is_cuda


@pytest.mark.parametrize("call", (
    lambda x, host: x + host, lambda x, host: host @ x, lambda x, host: torch.cat([x, host]),
    lambda x, host: functional.linear(x, host), lambda x, host: x.mul_(host),
    lambda x, host: torch.where(x > 0, x, host), lambda x, host: host + x[0, 0]))
def test_tensors_of_two_devices(call):
    x, host = torch.ones(2, 2, device="cuda"), torch.ones(2, 2)
    with pytest.raises(RuntimeError, match="on the same device, .* (cuda:0 and cpu|cpu and cuda:0)!"):
        call(x, host)
    assert (x + host[0, 0]).is_cuda and x[torch.tensor([0])].is_cuda and x.copy_(host).is_cuda


def test_what_a_tensor_says_of_itself():
    x = torch.tensor([1.0, 2.0], device="cuda")
    assert repr(x) == "tensor([1., 2.], device='cuda:0')" and x.type() == "torch.cuda.FloatTensor"
    assert f"{x} {x[0]:.1f} {x[0]}" == "tensor([1., 2.], device='cuda:0') 1.0 1.0"
    assert repr(x[0].half()) == "tensor(1., device='cuda:0', dtype=torch.float16)"
    assert "device='cuda:0', requires_grad=True" in repr(torch.nn.Parameter(x)) and "device" not in repr(x.cpu())
    assert repr(torch.empty(0, device="cuda")) == "tensor([], device='cuda:0')"
    facts = torch.cuda.get_device_properties(0)
    assert repr(facts).startswith("_CudaDeviceProperties(name='AMD Instinct MI300X") and facts.uuid
    assert torch.version.cuda is None


def test_host_and_gpu_draw_from_sequences_of_their_own():
    torch.manual_seed(0)
    host, there = torch.rand(3), torch.rand(3, device="cuda")
    torch.manual_seed(0)
    x = torch.empty(3, device="cuda").uniform_()
    functional.dropout(torch.ones(9, device="cuda"))
    torch.nn.Linear(4, 4, device="cuda")
    assert torch.equal(torch.rand(3), host) and torch.equal(x, there)
    torch.cuda.manual_seed(5)
    assert (torch.cuda.initial_seed(), torch.initial_seed()) == (5, 0)
    for call, wanted in ((lambda: torch.randn(2, device="cuda", generator=torch.Generator()), "cuda"),
                         (lambda: torch.randn(2, generator=torch.Generator("cuda")), "cpu"),
                         (lambda: x.normal_(generator=torch.Generator()), "cuda")):
        with pytest.raises(RuntimeError, match=f"Expected a '{wanted}' device type for generator"):
            call()
    with torch.device("cuda"):
        torch.manual_seed(1)
        first = torch.rand(2)
    torch.manual_seed(1)
    assert first.is_cuda and torch.equal(first, torch.rand(2, device="cuda"))
    ones, graph = torch.ones(32, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dropped = functional.dropout(ones)
    seen = []
    for seed in (5, None, 5):
        if seed is not None:
            torch.cuda.manual_seed(seed)
        graph.replay()
        seen.append(dropped.tolist())
    assert seen[0] == seen[2] != seen[1]
    with pytest.raises(RuntimeError, match="register_generator_state: expected a generator of device type cuda"):
        graph.register_generator_state(torch.default_generator)


def test_states_of_random_numbers():
    torch.manual_seed(3)
    generator = torch.cuda.default_generators[0]
    assert generator.device == torch.device("cuda:0") and generator.initial_seed() == torch.cuda.initial_seed() == 3
    states, numbers = [], []
    for _ in range(3):
        states.append(torch.cuda.get_rng_state())
        numbers.append(torch.rand(4, device="cuda"))
    assert [one.dtype for one in states] == [torch.uint8] * 3 and {tuple(one.shape) for one in states} == {(16,)}
    for i in (2, 0, 1):
        torch.cuda.set_rng_state(states[i])
        assert torch.equal(torch.rand(4, device="cuda"), numbers[i])
    seed, offset = states[0].view(torch.int64).tolist()  # as kernels of others do: they move it on themselves
    generator.set_state(torch.tensor([seed, offset + 40]).view(torch.uint8))
    assert (generator.get_offset(), generator.initial_seed()) == (offset + 40, 3)
    generator.set_state(torch.tensor([-1, 8]).view(torch.uint8))
    assert generator.initial_seed() == 2**64 - 1 and generator.get_state().view(torch.int64)[0].item() == -1
    with pytest.raises(RuntimeError, match="16 bytes"):
        torch.cuda.set_rng_state(torch.get_rng_state())
    own = torch.Generator("cuda").manual_seed(7)
    state = own.get_state()
    first = torch.randn(3, device="cuda", generator=own)
    assert torch.equal(first, torch.randn(3, device="cuda", generator=own.set_state(state)))
    with torch.random.fork_rng(devices=[0]):
        torch.rand(2, device="cuda")
    x = torch.ones(64, device="cuda", requires_grad=True)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64)).cuda()
    torch.utils.checkpoint.checkpoint(layers, x, use_reentrant=False).sum().backward()
    x.grad = None
    out = torch.utils.checkpoint.checkpoint(lambda one: functional.dropout(one, 0.5), x, use_reentrant=False)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach()), "the second pass drops the same ones"


def test_a_capture_draws_nothing():
    """Its first replay draws what would be drawn without it, also by a generator that the program registers."""
    x, own = torch.ones(100, device="cuda"), torch.Generator("cuda")

    def draw():
        return functional.dropout(x), torch.rand(3, device="cuda", generator=own)

    torch.cuda.manual_seed(5)
    own.manual_seed(6)
    expected = [draw() for _ in range(3)]
    torch.cuda.manual_seed(5)
    own.manual_seed(6)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(own)
    with torch.cuda.graph(graph):
        drawn = draw()
    graph.replay()
    found = [[one.clone() for one in drawn], draw()]
    graph.replay()
    assert all(one.equal(other) for pair in zip([*found, drawn], expected, strict=True)
               for one, other in zip(*pair, strict=True))


def test_a_capture_is_on_a_stream_of_its_own():
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        torch.cuda.CUDAGraph().capture_begin()
    assert not torch.cuda.is_current_stream_capturing()
