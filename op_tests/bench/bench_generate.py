# SPDX-License-Identifier: MIT
"""Tokens per second of a transformers Llama before and after `aiter_like.integrations.transformers.enable`.

`python op_tests/bench/bench_generate.py` takes a model of a billion parameters with random weights on the GPU, greedy,
and prints one table; `--tiny` runs the same code on a CPU, whose times mean nothing. Every variant is checked before it
is timed: logits against float32, tokens against the first variant's. Stock and ours take turns in eager mode, so that a
host that slows down slows both.
"""

import argparse
import copy
import logging
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import run
import torch
import transformers
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

from aiter_like import __version__, device
from aiter_like.integrations import takeover
from aiter_like.integrations import transformers as integration

_SIZES = {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
          "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256, "max_position_embeddings": 4096,
          "tie_word_embeddings": True,
          "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
_TINY = _SIZES | {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
                  "head_dim": 32, "intermediate_size": 128, "vocab_size": 200}
_STOCK, _OURS = "stock", "aiter_like"
_ERROR_FACTOR = 1.5  # of the first variant's own error against float32, which is its bfloat16 rounding
_TIE_FACTOR = 4.0  # logits closer than so many of its largest errors are a tie
_COLUMNS = ("batch", "variant", "prefill ms", "ms per token", "tokens/s", "decode vs stock", "error vs fp32")


@dataclass
class Run:
    """What one greedy generation gave: tokens [batch, new], logits [batch, new, vocabulary], seconds."""

    tokens: Tensor
    logits: Tensor | None
    prefill: float
    decode: float


@dataclass
class Measured:
    """What a variant did: a run with its logits, the timed ones, and what fell back."""

    run: Run
    timed: list[Run] = field(default_factory=list)
    fallen: dict[str, takeover.Counts] = field(default_factory=dict)

    @property
    def prefill(self) -> float:
        """Median seconds."""
        return statistics.median(each.prefill for each in self.timed)

    @property
    def decode(self) -> float:
        """Median seconds."""
        return statistics.median(each.decode for each in self.timed)


class Bench:
    """One model, and the ways to run it."""

    def __init__(self, is_tiny: bool, num_prompt: int, num_new: int, repeats: int):
        self.is_tiny, self.num_prompt, self.num_new, self.repeats = is_tiny, num_prompt, num_new, repeats
        self.device = torch.device("cpu" if is_tiny else "cuda")
        torch.manual_seed(0)
        with self.device:
            config = LlamaConfig(**(_TINY if is_tiny else _SIZES), initializer_range=0.1 if is_tiny else 0.04)
            self.model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).eval()
        for norm in (module for name, module in self.model.named_modules() if name.endswith("norm")):
            torch.nn.init.uniform_(norm.weight, 0.5, 1.5)  # ones would hide a norm without its weight

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def compiled(self) -> Callable:
        """The model's forward for decoding: with CUDA graphs on a GPU, by the compiler's front end on a CPU."""
        torch._dynamo.reset()
        options = {"backend": "aot_eager"} if self.is_tiny else {"mode": "reduce-overhead"}
        return torch.compile(self.model.forward, fullgraph=True, dynamic=False, **options)

    @torch.no_grad()
    def generate(self, prompt: Tensor, cache: transformers.Cache, step: Callable, keep: bool = False) -> Run:
        """Greedy tokens; `step` is the model's forward or a compiled one, the prefill is eager."""
        tokens, logits = [], []
        self.synchronize()
        start = time.perf_counter()
        latest = self.model(input_ids=prompt, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        self.synchronize()
        middle = time.perf_counter()
        for index in range(self.num_new):
            tokens.append(latest.argmax(-1, keepdim=True))
            if keep:
                logits.append(latest.clone())
            if index + 1 < self.num_new:
                torch.compiler.cudagraph_mark_step_begin()
                latest = step(input_ids=tokens[-1], past_key_values=cache, use_cache=True).logits[:, -1]
        self.synchronize()
        end = time.perf_counter()
        return Run(torch.cat(tokens, 1), torch.stack(logits, 1) if keep else None, middle - start, end - middle)

    def measure(self, prompt: Tensor, is_compiled: bool) -> dict[str, Measured]:
        """Variant → what it did."""
        static = StaticCache(config=self.model.config, max_cache_len=self.num_prompt + self.num_new)
        found: dict[str, Measured] = {}

        def take(name: str, repeats: int) -> None:
            (integration.enable if name == _OURS else integration.disable)(self.model)
            step = self.compiled() if is_compiled else self.model.forward

            def run(keep: bool = False) -> Run:
                if is_compiled:
                    static.reset()
                return self.generate(prompt, static if is_compiled else DynamicCache(config=self.model.config), step,
                                     keep)

            if name not in found:
                takeover.reset_counters()
                found[name] = Measured(run(keep=True))
            run()  # CUDA graphs are recorded by the second and third call
            found[name].timed += [run() for _ in range(repeats)]
            found[name].fallen |= {key: counts for key, counts in takeover.counters().items() if counts.fell_back}

        for name in (_STOCK, _OURS) * (1 if is_compiled else self.repeats):
            take(name, self.repeats if is_compiled else 1)
        return found

    @torch.no_grad()
    def exact(self, prompt: Tensor, tokens: Tensor) -> Tensor:
        """Logits in float32 at each generated token, given the ones before it."""
        wide = copy.deepcopy(self.model).float()
        rows = torch.cat((prompt, tokens[:, :-1]), 1)
        return torch.cat([wide(input_ids=row[None], logits_to_keep=self.num_new).logits for row in rows])


def error_of(run: Run, reference: Run, exact: Tensor) -> tuple[float, Tensor]:
    """Largest relative error of the logits up to where a row's tokens first differ from the reference's, and which
    rows differ at a place that is no tie.
    """
    differs = run.tokens != reference.tokens
    is_same_past = differs.cumsum(1) - differs.int() == 0  # all tokens before this one are the same
    difference = (run.logits.float() - exact).norm(dim=-1) / exact.norm(dim=-1)
    first = differs & is_same_past
    chosen, expected = (exact.gather(-1, tokens[..., None])[..., 0] for tokens in (run.tokens, reference.tokens))
    tie = _TIE_FACTOR * (reference.logits.float() - exact).abs().amax(-1)
    return difference[is_same_past].max().item(), (first & (expected - chosen > tie)).any(1)


def table(bench: Bench, batches: list[int], budget: float) -> bool:
    """Prints the table; whether every variant was right."""
    start, is_right = time.perf_counter(), True
    print("| " + " | ".join(_COLUMNS) + " |\n|" + "---|" * len(_COLUMNS), flush=True)
    references: dict[int, tuple] = {}
    for kind, batch in ((kind, batch) for kind in ("eager", "compiled") for batch in batches):
        if time.perf_counter() - start > budget:
            print(f"| {batch} | {kind} | not run: out of time |" + " |" * (len(_COLUMNS) - 3), flush=True)
            continue
        prompt = torch.randint(0, bench.model.config.vocab_size, (batch, bench.num_prompt),
                               generator=torch.Generator().manual_seed(batch)).to(bench.device)
        measured = bench.measure(prompt, kind == "compiled")
        if batch not in references:
            first = measured[_STOCK]
            exact = bench.exact(prompt, first.run.tokens)
            references[batch] = first, exact, _ERROR_FACTOR * error_of(first.run, first.run, exact)[0]
        first, exact, limit = references[batch]
        for name, each in measured.items():
            error, is_wrong = error_of(each.run, first.run, exact)
            faults = [f"error {error:.2e} above {limit:.2e}"] if not error <= limit else []
            faults += [f"{int(is_wrong.sum())} rows with other tokens"] if is_wrong.any() else []
            faults += [f"fell back: {each.fallen}"] if each.fallen else []
            is_right &= not faults
            cells = (batch, f"{name}, {kind}", f"{each.prefill * 1e3:.2f}",
                     f"{each.decode / (bench.num_new - 1) * 1e3:.3f}",
                     f"{batch * bench.num_new / (each.prefill + each.decode):.0f}",
                     f"{measured[_STOCK].decode / each.decode:.2f}×",
                     f"{error:.2e}" + "".join(f"; WRONG: {fault}" for fault in faults))
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    integration.disable(bench.model)
    return is_right


def main() -> int:
    """The command line; 1 when a variant was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a tiny model on the CPU: the code paths, not the times")
    parser.add_argument("--batch", type=int, nargs="+", default=None, help="default: 1 16")
    parser.add_argument("--budget", type=float, default=110.0, help="seconds after which no variant is begun")
    args = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    if args.tiny:
        device.use_simulator(True)
    else:
        run.need_gpu()
    bench = Bench(args.tiny, *(8, 4, 1) if args.tiny else (512, 64, 5))
    target = device.target_of(bench.device)
    where = f"simulated {target.arch}" if target.simulated else torch.cuda.get_device_name()
    config, parameters = bench.model.config, sum(p.numel() for p in bench.model.parameters())
    print(f"{where}, torch {torch.__version__}, transformers {transformers.__version__}, aiter_like {__version__}: "
          f"Llama of {parameters / 1e9:.2f} billion parameters (random), {config.num_hidden_layers} layers, bfloat16; "
          f"prompt {bench.num_prompt}, {bench.num_new} new tokens, greedy\n", flush=True)
    return 0 if table(bench, args.batch or ([2] if args.tiny else [1, 16]), args.budget) else 1


if __name__ == "__main__":
    sys.exit(main())
