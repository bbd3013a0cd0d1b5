# SPDX-License-Identifier: MIT
"""Host time of an engine's step with a tiny Llama: each prefill of another length, contexts that grow by a token.

`python op_tests/bench/bench_host.py --steps`: through transformers, ours beside stock; and through vLLM's adapters
where this Python has vLLM (`PYTHONPATH=. .engines/vllm/bin/python`, which its tests build), ours with AITER_LIKE=1 and
stock without. The layers are so narrow that on a GPU, as on a simulated device that computes nothing, the host is what
is left. Behind the times of ours stands what remains of a warm step, by function.
"""

from __future__ import annotations

import cProfile
import importlib.util
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType

import torch

import aiter_like

LAYERS = 8
_PREFILLS, _STEPS, _WARM, _LISTED = 24, 48, 6, 20
_PACKAGE = Path(aiter_like.__file__).parent
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "integrations"))


def longest(on: torch.device) -> int:
    """Of the prompts, in tokens: a CPU really computes what is no operator of ours."""
    return 384 if on.type == "cuda" else 48


def report(who: str, what: str, seconds: Sequence[float]) -> None:
    """Milliseconds of the median step and of the slowest of ten."""
    print(f"{who:<24} {what:<44} {statistics.median(seconds) * 1e3:8.2f} ms, p90 "
          f"{statistics.quantiles(seconds, n=10)[-1] * 1e3:8.2f}", flush=True)


def _now() -> float:
    """Seconds; without a GPU of this thread's processor time, which other load hardly moves."""
    return time.perf_counter() if torch.cuda.is_available() else time.thread_time()


def _timed(function: Callable[[], object]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = _now()
    function()
    return _now() - start


def what_remains(who: str, step: Callable[[], object], steps: int) -> None:
    """Prints which functions of ours warm steps pass, by their own time, and what these do that none must."""
    from watching import watched

    with watched() as found:
        step()
    profile, times, calls = cProfile.Profile(_now), Counter(), Counter()
    for _ in range(steps - 1):
        profile.runcall(step)
    for entry in profile.getstats():
        if place := _place(entry.code):
            times[place] += entry.inlinetime / (steps - 1) * 1e6
            calls[place] += entry.callcount / (steps - 1)
    print(f"{who}: a warm decode by function, the launch within `serves`; a profiler adds to each call")
    for place, own in times.most_common(_LISTED):
        print(f"  {place:<62} {calls[place]:7.1f} calls {own:8.1f} us")
    print(f"  {f'all {len(times)} functions':<62} {calls.total():7.1f} calls {times.total():8.1f} us")
    for text, count in found.items():
        print(f"  NOT FOR A WARM STEP: {text}, {count} times")


def _place(code: CodeType | str) -> str:
    """Where a function of ours stands, "" for others; those made from text for classes of calls are one."""
    if isinstance(code, str):
        return ""
    if code.co_filename.startswith("<aiter_like "):
        return f"{code.co_filename.rpartition(' ')[0]}>"
    file = Path(code.co_filename)
    return f"{file.relative_to(_PACKAGE)} {code.co_name}" if file.is_relative_to(_PACKAGE) else ""


@torch.no_grad()
def transformers_steps(on: torch.device) -> None:
    """A model's forward as generate() calls it."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    from aiter_like.integrations import transformers as integration

    most = longest(on)
    config = LlamaConfig(hidden_size=64, num_hidden_layers=LAYERS, intermediate_size=128, vocab_size=64, head_dim=32,
                         num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=4 * most)
    with on:
        model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).eval()
    integration.disable(model)  # AITER_LIKE=1 has enabled it
    lengths = random.Random(0).sample(range(2, most), _WARM + _PREFILLS)

    def prefill(length: int) -> DynamicCache:
        cache = DynamicCache(config=config)
        model(input_ids=torch.zeros(1, length, dtype=torch.int64, device=on), past_key_values=cache, logits_to_keep=1)
        return cache

    def prefills(seen: Sequence[int]) -> list[float]:
        return [_timed(lambda length=length: prefill(length)) for length in seen]

    def decoding(cache: DynamicCache) -> Callable[[], object]:
        token = torch.zeros(1, 1, dtype=torch.int64, device=on)
        return lambda: model(input_ids=token, past_key_values=cache, logits_to_keep=1)

    def decode(cache: DynamicCache) -> list[float]:
        step = decoding(cache)
        return [_timed(step) for _ in range(_STEPS)]

    for who in ("transformers, stock", "transformers, ours"):
        if who.endswith("ours"):
            integration.enable(model)
        prefills(lengths[:_WARM])
        decode(prefill(most + 1))
        report(who, "prefill of a length not seen before", prefills(lengths[_WARM:]))
        report(who, "prefill of the same length again", prefills([lengths[-1]] * _PREFILLS))
        report(who, "decode, the context grows", decode(prefill(lengths[-1])))
        report(who, "decode of the same contexts again", decode(prefill(lengths[-1])))
    what_remains(who, decoding(prefill(lengths[-1])), _STEPS)
    integration.uninstall()


def _draw_one_token() -> None:
    """A dry simulator leaves the drawn tokens unwritten, and vLLM would look for such numbers in its embeddings."""
    from vllm.v1.sample.sampler import Sampler

    draw = Sampler.greedy_sample
    Sampler.greedy_sample = staticmethod(lambda logits: draw(logits).fill_(1))


def vllm_steps(on: torch.device) -> None:
    """LLMEngine.step() of one sequence, the scheduler's and the sampler's time included."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    import tiny_checkpoint
    from vllm import LLM, SamplingParams
    from vllm_process import LLM_OPTIONS

    from aiter_like import env

    most = longest(on)
    options = LLM_OPTIONS | {"max_model_len": 2 * (most + _STEPS), "max_num_batched_tokens": most}
    overrides = {"num_hidden_layers": LAYERS, "max_position_embeddings": options["max_model_len"]}
    with tempfile.TemporaryDirectory() as folder:
        tiny_checkpoint.write(Path(folder), "llama")
        llm = LLM(folder, load_format="dummy", hf_overrides=overrides, **options)
    if on.type == "cpu":
        _draw_one_token()
    engine, who = llm.llm_engine, f"vLLM, {'ours' if env.get('AITER_LIKE') else 'stock'}"
    numbers = iter(range(10**6))

    def add(length: int, tokens: int) -> None:
        sampling = SamplingParams(temperature=0, max_tokens=tokens, detokenize=False, ignore_eos=True)
        engine.add_request(str(next(numbers)), {"prompt_token_ids": [1] * length}, sampling)

    def generate(length: int, tokens: int) -> list[float]:
        add(length, tokens)
        return [_timed(engine.step) for _ in range(tokens)]

    lengths = random.Random(0).sample(range(2, most), _WARM + _PREFILLS)
    for length in lengths[:_WARM]:
        generate(length, 2)
    generate(most - 1, _STEPS)
    report(who, "prefill of a length not seen before", [generate(length, 1)[0] for length in lengths[_WARM:]])
    report(who, "prefill of the same length again", [generate(lengths[-1], 1)[0] for _ in range(_PREFILLS)])
    report(who, "decode, the context grows", generate(lengths[-1], _STEPS)[1:])
    report(who, "decode of the same contexts again", generate(lengths[-1], _STEPS)[1:])
    if env.get("AITER_LIKE"):
        add(lengths[-1], _STEPS)
        engine.step()
        what_remains(who, engine.step, _STEPS - 1)


def bench(on: torch.device) -> None:
    """Of transformers, then of vLLM where it is installed."""
    transformers_steps(on)
    if importlib.util.find_spec("vllm"):
        vllm_steps(on)
