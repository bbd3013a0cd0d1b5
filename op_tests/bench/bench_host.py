# SPDX-License-Identifier: MIT
"""What an operator costs on the host: import, cold build, warm load, eager call over the bare tvm-ffi function.

`python op_tests/bench/bench_host.py`. Nothing is computed: the simulated device runs dry: a launch costs its host side
only. The same calls through torch.library.custom_op, in the same run, are the yardstick.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from unittest import mock

import torch

import aiter_like
from aiter_like import device, sim
from aiter_like.build import build
from aiter_like.dispatch import torch_ops
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
sim.load()
x = torch.ones(1, 64)
target = device.target_of(x.device)
start = time.perf_counter()
_rms_norm_hip.bind(target, (x, x, x[0], 1e-6, 0, None, None, False))
print(time.perf_counter() - start)
"""


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


def builds(with_simulator: bool) -> None:
    """Cold builds into an empty cache."""
    rms_norm = _rms_norm_hip.instance_spec(_rms_norm_hip.instances()[0], "hip", "gfx942")
    instances = {instance.name: instance for instance in flash_attn_fwd_hip.instances()}
    attention = flash_attn_fwd_hip.instance_spec(instances["bf16_d128_right_rtna"], "hip", "gfx942")
    specs = [(rms_norm, 5.0), (attention, 15.0)] + ([(sim.module_spec(), 25.0)] if with_simulator else [])
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, AITER_LIKE_CACHE_DIR=folder):
        for spec, limit in specs:
            start = time.perf_counter()
            build.ensure(spec)
            report(f"cold build of {spec.name}", time.perf_counter() - start, "s", limit)


def as_custom_op(name: str, bare: Callable, signature: str) -> Callable:
    """`bare` behind torch.library.custom_op."""
    return torch.library.custom_op(f"bench_host::{name}", mutates_args=("out",), schema=signature)(
        lambda *args: bare(*args))


def calls() -> None:
    """Eager calls with `out=` given, all argument checks in place."""
    target = device.target_of(torch.device("cpu"))
    x, weight = torch.randn(4, 4096, dtype=torch.bfloat16), torch.randn(4096, dtype=torch.bfloat16)
    out = torch.empty_like(x)
    args = (out, x, weight, 1e-6, 0, None, None, False)
    bare = _rms_norm_hip.bind(target, args)
    schema = "(Tensor(a!) out, Tensor x, Tensor weight, float epsilon, int flag, Tensor? a, Tensor? b, bool c) -> ()"
    custom = as_custom_op("rms_norm", bare, schema)
    compare("rms_norm", lambda: bare(*args), lambda: aiter_like.rms_norm(x, weight, 1e-6, out=out), custom, args, 2.0)

    q = torch.randn(1, 128, 8, 64, dtype=torch.bfloat16)
    k, v = torch.randn(2, 1, 128, 2, 64, dtype=torch.bfloat16)
    out_attention = torch.empty_like(q)
    args_attention = dense_call(out_attention, None, q, k, v, window_right=0, how_v3_bf16_cvt=1)
    bare_attention = flash_attn_fwd_hip.bind(target, args_attention)
    parameters = torch_ops.parameters(flash_attn_fwd.reference, writes=("out",)).removesuffix(", *, str? backend=None")
    custom = as_custom_op("flash_attn_func", bare_attention, f"({parameters}) -> ()")
    compare("flash_attn_func", lambda: bare_attention(*args_attention),
            lambda: aiter_like.flash_attn_func(q, k, v, causal=True, out=out_attention), custom, args_attention, 3.5)


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
    options = parser.parse_args()
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} cores")
    imports()
    builds(not options.no_simulator_build)
    device.use_simulator(True)
    sim.load()
    torch.set_num_threads(1)  # a product of one row would wait for others
    with torch.no_grad(), sim.enabled(checks=False, dry=True):
        calls()
        adapters()
    report("warm load of norm/rms_norm", in_new_process(_LOAD) * 1e3, "ms", 10)


if __name__ == "__main__":
    main()
