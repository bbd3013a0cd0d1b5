# SPDX-License-Identifier: MIT
"""What an operator costs on the host: import, cold build, warm load, eager call over the bare tvm-ffi function.

`python op_tests/bench/bench_host.py`. On a GPU the yardstick is torch's own call, in the same process, loop by loop. On
the simulated device nothing is computed: it runs dry, a launch costs its host side only; there the same calls through
torch.library.custom_op are the yardstick. What has to be built, the compiler of that device's platform builds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import bench_fresh
import bench_steps
import torch
import torch.nn.functional as F

import aiter_like
from aiter_like import device, sim
from aiter_like.dispatch import torch_ops
from aiter_like.modules import build
from aiter_like.ops.attention.call import dense_call
from aiter_like.ops.attention.flash_attn_fwd import flash_attn_fwd
from aiter_like.ops.attention.flash_attn_fwd_hip import flash_attn_fwd_hip
from aiter_like.ops.norm.rms_norm import _rms_norm_hip
from aiter_like.testing import host_time_us

# Seconds of importing torch, and after it the package, or the package and one operator by its name.
_TORCH = "import time; start = time.perf_counter(); import torch; print(time.perf_counter() - start)"
_IMPORT = "import time, torch; start = time.perf_counter(); import aiter_like; print(time.perf_counter() - start)"
_OPERATOR = _IMPORT.replace("import aiter_like", "import aiter_like; aiter_like.rms_norm")
_LOAD = """
import time, torch, tvm_ffi
from aiter_like import device, sim
from aiter_like.ops.norm.rms_norm import _rms_norm_hip
if not torch.cuda.is_available():
    sim.load()
x = torch.ones(1, 64, device="cuda" if torch.cuda.is_available() else "cpu")
target = device.target_of(x.device)
start = time.perf_counter()
_rms_norm_hip.bind(target, (x, x, x[0], 1e-6, 0, None, None, False))
print(time.perf_counter() - start)
"""

DTYPE = torch.bfloat16


def report(what: str, value: float, unit: str, limit: float | None = None, note: str = "") -> None:
    verdict = "" if limit is None else f"limit {limit:g} {unit}: {'ok' if value <= limit else 'OVER'}"
    print(f"{what:<52} {value:9.2f} {unit:<3} {verdict:<22} {note}".rstrip())


def in_new_process(code: str, repeats: int = 5) -> float:
    """The least of the seconds that `code` prints: other load only ever adds."""
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            for _ in range(repeats)]
    return min(float(run.stdout) for run in runs)


def imports() -> None:
    """What importing costs, beside torch's own import."""
    torch_seconds = in_new_process(_TORCH)
    report("import of torch", torch_seconds * 1e3, "ms")
    for what, code in (("import beyond torch", _IMPORT), ("import and aiter_like.rms_norm, beyond torch", _OPERATOR)):
        seconds = in_new_process(code)
        report(what, seconds * 1e3, "ms")
        report(f"{what}: of torch's", seconds / torch_seconds, "x", 0.10)


def builds(target: device.Target, with_simulator: bool) -> None:
    """Cold builds into an empty cache."""
    platform, arch = target.platform, target.arch
    specs = [(_rms_norm_hip.instance_spec(_rms_norm_hip.instances()[0], platform, arch), 5.0)]
    if platform == "hip":
        instances = {instance.name: instance for instance in flash_attn_fwd_hip.instances()}
        specs.append((flash_attn_fwd_hip.instance_spec(instances["bf16_d128_right_rtna"], platform, arch), 15.0))
    if with_simulator and target.simulated:
        specs.append((sim.module_spec(), 25.0))
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, AITER_LIKE_CACHE_DIR=folder):
        for spec, limit in specs:
            start = time.perf_counter()
            build.ensure(spec)
            report(f"cold build of {spec.name}", time.perf_counter() - start, "s", limit)


def as_custom_op(name: str, bare: Callable, signature: str) -> Callable:
    """`bare` behind torch.library.custom_op."""
    return torch.library.custom_op(f"bench_host::{name}", mutates_args=("out",), schema=signature)(
        lambda *args: bare(*args))


def calls(on: torch.device) -> None:
    """Eager calls with `out=` given, all argument checks in place."""
    target = device.target_of(on)
    x, weight = torch.randn(4, 4096, dtype=DTYPE, device=on), torch.randn(4096, dtype=DTYPE, device=on)
    out = torch.empty_like(x)
    args = (out, x, weight, 1e-6, 0, None, None, False)
    bare = _rms_norm_hip.bind(target, args)
    schema = "(Tensor(a!) out, Tensor x, Tensor weight, float epsilon, int flag, Tensor? a, Tensor? b, bool c) -> ()"
    custom = as_custom_op("rms_norm", bare, schema)
    compare("rms_norm", lambda: bare(*args), lambda: aiter_like.rms_norm(x, weight, 1e-6, out=out), custom, args, 2.0)
    if target.platform != "hip":
        return
    q = torch.randn(1, 128, 8, 64, dtype=DTYPE, device=on)
    k, v = torch.randn(2, 1, 128, 2, 64, dtype=DTYPE, device=on)
    out_attention = torch.empty_like(q)
    args_attention = dense_call(out_attention, None, q, k, v, window_right=0, how_v3_bf16_cvt=1)
    bare_attention = flash_attn_fwd_hip.bind(target, args_attention)
    parameters = torch_ops.parameters(flash_attn_fwd.reference, writes=("out",)).removesuffix(", *, str? backend=None")
    custom = as_custom_op("flash_attn_func", bare_attention, f"({parameters}) -> ()")
    compare("flash_attn_func", lambda: bare_attention(*args_attention),
            lambda: aiter_like.flash_attn_func(q, k, v, causal=True, out=out_attention, backend="hip"), custom,
            args_attention, 3.5)


def beside_torch(on: torch.device) -> None:
    """Eager calls that allocate their results, and torch's own of the same tensors: small ones, so that the host is
    never ahead of the GPU's queue.
    """
    def random(*shape: int, dtype: torch.dtype = DTYPE) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype, device=on)

    x, weight, wide, a, b = random(4, 4096), random(4096), random(4, 8192), random(16, 4096), random(4096, 4096)
    logits, act = random(4, 32000, dtype=torch.float32), random(4, 4096)
    q, k, v = random(1, 128, 8, 64), random(1, 128, 8, 64), random(1, 128, 8, 64)
    heads_first = [tensor.transpose(1, 2) for tensor in (q, k, v)]
    pairs = {
        "rms_norm": (lambda: aiter_like.rms_norm(x, weight, 1e-6), lambda: F.rms_norm(x, (4096,), weight, 1e-6)),
        "layer_norm": (lambda: aiter_like.layer_norm(x, weight, weight, 1e-6),
                       lambda: F.layer_norm(x, (4096,), weight, weight, 1e-6)),
        "softmax": (lambda: aiter_like.softmax(logits), lambda: torch.softmax(logits, -1)),
        "silu_and_mul": (lambda: aiter_like.silu_and_mul(act, wide), lambda: F.silu(wide[:, :4096]) * wide[:, 4096:]),
        "sigmoid": (lambda: aiter_like.sigmoid(x), lambda: torch.sigmoid(x)),
        "flash_attn_func": (lambda: aiter_like.flash_attn_func(q, k, v, causal=True),
                            lambda: F.scaled_dot_product_attention(*heads_first, is_causal=True)),
        "gemm_a16w16": (lambda: aiter_like.gemm_a16w16(a, b), lambda: F.linear(a, b)),
        "gemm_a16w16, triton": (lambda: aiter_like.gemm_a16w16(a, b, backend="triton"), lambda: F.linear(a, b))}
    for name, (ours, torchs) in pairs.items():
        for call in (ours, torchs) * 3:
            call()
        our_us, torch_us = interleaved_us(ours, torchs)
        report(f"{name}: torch's own", torch_us, "us")
        report(f"{name}: public call", our_us, "us")
        report(f"{name}: of torch's own", our_us / torch_us, "x", 1.0)


def interleaved_us(*functions: Callable, calls: int = 200, repeats: int = 60) -> list[float]:
    """Host time of a call of each function in µs, loop by loop in turn; the queue is empty before each loop."""
    loops: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for function, times in zip(functions, loops):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times.append(host_time_us(function, calls=calls, repeats=1))
    return [*map(min, loops)]


def adapters() -> None:
    """What the layers of a transformers Llama call for one token, beyond the operators: most of it is checks, views
    and allocations.
    """
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.llama import modeling_llama

    from aiter_like.integrations.transformers import enable, uninstall

    config = LlamaConfig(hidden_size=64, num_hidden_layers=1, intermediate_size=64, vocab_size=64, head_dim=64,
                         num_attention_heads=4, num_key_value_heads=2)
    model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).eval()
    layer = model.model.layers[0]
    x, cos, sin = torch.randn(3, 1, 1, 64, dtype=torch.bfloat16)
    q, (k, v) = torch.randn(1, 4, 1, 64, dtype=torch.bfloat16), torch.randn(2, 1, 2, 576, 64, dtype=torch.bfloat16)
    seen = tuple(tensor.transpose(1, 2) for tensor in (q, k, v))
    new = k[:, :, :1]
    flat, halves = x.view(1, 64), (cos[..., :32].unsqueeze(2), sin[..., :32].unsqueeze(2))
    wide, turn = torch.randn(1, 128, dtype=torch.bfloat16), [tensor.permute(2, 0, 1, 3) for tensor in (q, new)]
    norm, mlp = layer.input_layernorm, layer.mlp
    weights, out = [layer.mlp.gate_proj.weight.t(), layer.mlp.down_proj.weight.t()], torch.empty_like(flat)
    enable(model)
    attend, options = ALL_ATTENTION_FUNCTIONS[config._attn_implementation], {"position_ids": None, "use_cache": True}
    for name, adapter, operator in (
            ("attention", lambda: attend(layer.self_attn, q, k, v, None, scaling=0.125, **options),
             lambda: aiter_like.flash_attn_func(*seen, softmax_scale=0.125)),
            ("rotary", lambda: modeling_llama.apply_rotary_pos_emb(q, new, cos, sin),
             lambda: aiter_like.rope_cached_2c_fwd(*turn, *halves, 0, True, False)),
            ("rms_norm", lambda: norm(x), lambda: aiter_like.rms_norm(x, norm.weight, 1e-6, 1)),
            ("gated_mlp", lambda: mlp(x), lambda: (aiter_like.silu_and_mul(out, wide), torch.mm(flat, weights[0]),
                                                   torch.mm(flat, weights[0]), torch.mm(flat, weights[1])))):
        adapter(), operator()
        operator_us, adapter_us = (host_time_us(call, calls=500, repeats=20) for call in (operator, adapter))
        report(f"transformers {name}: beyond its operator's {operator_us:.1f} us", adapter_us - operator_us, "us")
    uninstall()


def compare(name: str, bare: Callable, public: Callable, custom: Callable, args: tuple, limit: float) -> None:
    public()  # decides backend and builds
    bare_us, public_us = host_time_us(bare), host_time_us(public)
    custom_us = host_time_us(lambda: custom(*args))
    report(f"{name}: bare tvm-ffi call", bare_us, "us")
    report(f"{name}: public call, beyond the bare one", public_us - bare_us, "us", limit)
    report(f"{name}: torch.library.custom_op, beyond the bare one", custom_us - bare_us, "us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-simulator-build", action="store_true", help="leave out the simulator's cold build")
    parser.add_argument("--calls", action="store_true", help="calls alone: neither imports nor cold builds")
    parser.add_argument("--fresh", nargs="*", metavar="OPERATOR",
                        help="of all operators, or these: sizes not seen before beside repeated ones (bench_fresh.py)")
    parser.add_argument("--count", type=int, default=400, help="of --fresh: sizes per operator")
    parser.add_argument("--json", type=Path, help="of --fresh: where to write its rows")
    parser.add_argument("--steps", action="store_true", help="an engine's steps with a tiny Llama (bench_steps.py)")
    options = parser.parse_args()
    has_gpu = torch.cuda.is_available()
    where = torch.cuda.get_device_name() if has_gpu else "simulated MI300X, dry"
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} cores, {where}")
    if not has_gpu:
        device.use_simulator(True)
    on = torch.device("cuda" if has_gpu else "cpu")
    only = options.fresh is not None or options.steps
    if not (options.calls or only):
        imports()
        builds(device.target_of(on), not options.no_simulator_build)
    torch.set_num_threads(1)  # a product of one row would wait for others
    with torch.no_grad(), contextlib.ExitStack() as stack:
        if not has_gpu:
            sim.load()
            stack.enter_context(sim.enabled(checks=False, dry=True))
        if options.fresh is not None:
            bench_fresh.bench(on, options.count, options.fresh, options.json)
        if options.steps:
            bench_steps.bench(on)
        if only:
            return
        calls(on)
        if has_gpu:
            beside_torch(on)
        else:
            adapters()
    report("warm load of norm/rms_norm", in_new_process(_LOAD) * 1e3, "ms", 10)


if __name__ == "__main__":
    main()
