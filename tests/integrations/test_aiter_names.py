# SPDX-License-Identifier: MIT
"""The table of AITER's names is the contract: each name is there, with its signature, and works or says what to use."""

from __future__ import annotations

import functools
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import aiter_like as aiter
from aiter_like import cli, device
from aiter_like.enums import QuantType
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter import names as aiter_names
from aiter_like.integrations.aiter import table as aiter_table
from aiter_like.integrations.aiter.declare import parse_entry
from aiter_like.integrations.aiter.names import difference
from aiter_like.ops.index import PUBLIC

ROWS = aiter_names.table()
TOP = [row for row in ROWS if aiter_names.top_level()[row.name] is row]
FAMILIES = {"norm", "activation", "attention", "layout", "rope"}  # what engines call of them is served


def named(rows):
    return pytest.mark.parametrize("row", [pytest.param(row, id=f"{row.modules[0]}.{row.name}") for row in rows])


def resolve(name: str):
    found = aiter
    for part in name.split("."):
        found = getattr(found, part)
    return found


def signature(text: str) -> inspect.Signature:
    return inspect.signature(eval(f"lambda {text}: None"))


@named([row for row in ROWS if row.server is not None])
def test_served_names_are_there(row):
    assert row.value is not None


def test_a_default_of_fp8_is_the_devices():
    row = aiter_names.top_level()["act_mul_and_fp8_group_quant"]
    assert inspect.signature(row.value).parameters["dtype_quant"].default is None
    for default in (None, torch.float8_e4m3fnuz, torch.float8_e4m3fn, torch.int8):
        theirs = row.signature.replace(parameters=[
            one.replace(default=default) if one.name == "dtype_quant" else one
            for one in row.signature.parameters.values()])
        assert bool(difference(row.signature, theirs)) == (default == torch.int8)


@named(TOP)
def test_name_resolves_at_the_top_level(row):
    """Exceptions: a name that a Triton module lacks can be ours, the plain `fused_qk_rmsnorm` is the unquantised one
    here, as vLLM imports it, the plain `batched_gemm_bf16` has our own options where that of the Triton module has its
    kernel's, the plain `fused_moe` looks at `gate_mode` for all weights, the plain `moe_smoothquant_fwd` takes rows of
    two dimensions, RoPE of tokens in place rounds once, int8 of quantisers is rounded to nearest, activations with a
    bias leave it out in rows of no expert, and a window of attention is no tensor."""
    found = resolve(row.name)
    if row.server is None and row.name in PUBLIC:
        assert not hasattr(found, "is_missing")
        return
    others = {"fused_moe": ("aiter.fused_moe",), "moe_smoothquant_fwd": ("aiter", "aiter.ops.quant"),
              "fused_qk_rmsnorm": ("aiter.ops.fused_qk_rmsnorm_group_quant", "aiter"),
              "batched_gemm_bf16": ("aiter.ops.triton.gemm.batched.batched_gemm_bf16",
                                    "aiter.ops.triton.batched_gemm_bf16"),
              "rope_cached_thd_positions_offsets_2c_fwd_inplace": ("aiter.ops.triton.rope.rope",),
              **dict.fromkeys(("flash_attn_func", "flash_attn_varlen_func"), ("aiter", "aiter.ops.mha")),
              **dict.fromkeys(("silu_and_mul_bias", "gelu_and_mul_bias", "swiglu_and_mul_bias"),
                              ("aiter", "aiter.ops.activation"))}
    if row.name in others or (row.server or "").startswith("quant.int8:"):
        assert sorted(row.modules) == sorted(others.get(row.name, row.modules))
        return
    assert found is row.value or found == row.value


@named([row for row in ROWS if row.server is None])
def test_missing_name_says_what_to_use(row):
    with pytest.raises(UnsupportedError, match="is not served by aiter_like; use ") as raised:
        row.value(1, other=2)
    assert row.advice in str(raised.value) and raised.value.op == row.name


def test_families_that_exist_are_complete():
    assert not [row.name for row in ROWS if row.section in FAMILIES and row.server is None
                and ("aiter" in row.modules or row.callers != "U") and not re.search("gfx950|gfx1250", row.advice)]
    assert {row.section for row in ROWS} >= FAMILIES


def test_every_row_is_told_apart():
    seen: set[tuple[str, str]] = set()
    for row in ROWS:
        assert row.callers and set(row.callers.split()) <= set("VSsU"), row
        for module in row.modules:
            assert module == "torch.ops.aiter" or module.split(".")[0] == "aiter", row
            assert (module, row.name) not in seen, row
            seen.add((module, row.name))


@pytest.mark.parametrize(("line", "message"), [
    ('V = ["aiter rms_norm"]', "names.toml: expected \"modules:names\", got 'aiter rms_norm'"),
    ('V = ["aiter:"]', 'names.toml: expected "modules:names"'),
    ('P = ["aiter:rms_norm"]', "names.toml: a list must be of VS, V, Vs, S, s, U, got P")])
def test_mistakes_in_the_table_are_found(tmp_path, monkeypatch, line, message):
    broken = tmp_path / "names.toml"
    broken.write_text(f"missing = []\n[[served]]\n{line}\n")
    monkeypatch.setattr(aiter_names, "_TABLE", broken)
    with pytest.raises(ValueError, match=re.escape(message)):
        aiter_names.table.__wrapped__()


def test_entries():
    assert list(parse_entry("aiter aiter.ops.triton.[gemm.]x:mm tgemm.mm=mm")) == [
        (name, "mm", ("aiter", "aiter.ops.triton.x", "aiter.ops.triton.gemm.x")) for name in ("mm", "tgemm.mm")]


@pytest.mark.parametrize(("ours", "theirs", "reason"), [
    ("a, b=1", "a, b=1", ""),
    ("a, b=1, more=2", "a, b=1", ""),
    ("a, b=1, *, out=None", "a, b=1, newer=3", ""),
    ("a, b=1", "b=1, a=2", "b is a"),
    ("a, b=1", "a, b=2", "the default of b is 1, not 2"),
    ("a, b=None", "a, b", "the default of b is None"),
    ("a", "a, b", "only one of both has b"),
    ("a, b", "a", "only one of both has b"),
    ("f, *args, n=1, **kw", "f, *args, n=1, **kw", ""),
    ("f, *args, n=1, **kw", "f, *args, n=2, **kw", "the default of n"),
])
def test_differences_of_signatures(ours, theirs, reason):
    found = difference(signature(ours), signature(theirs))
    assert found.startswith(reason) and bool(found) == bool(reason)


def test_enum_defaults_of_another_library_count_as_their_numbers():
    class Foreign:
        value = 0

    theirs = inspect.Signature([inspect.Parameter("quant_type", inspect.Parameter.POSITIONAL_OR_KEYWORD,
                                                  default=Foreign())])
    ours = inspect.signature(lambda quant_type=QuantType.No: None)
    assert not difference(ours, theirs)
    Foreign.value = 2
    assert difference(ours, theirs)


def test_unknown_names_are_errors():
    with pytest.raises(AttributeError, match="nor has AITER"):
        _ = aiter.no_such_operator
    assert not hasattr(aiter, "__no_such_thing__")
    with pytest.raises(ImportError):
        from aiter_like import no_such_operator  # noqa: F401
    assert {"rms_norm", "fused_moe", "tgemm", "checkAllclose"} <= set(dir(aiter))


def test_importing_the_package_reads_no_table():
    code = """
import sys, aiter_like
assert not any(name.startswith("aiter_like.integrations") for name in sys.modules), "read at import"
assert len(dir(aiter_like)) > 500
adapters = ("attention", "gemm", "mla", "moe", "others", "quant", "rope", "objects", "tests")
loaded = {name.removeprefix("aiter_like.integrations.aiter.").partition(".")[0] for name in sys.modules}
assert not loaded & set(adapters), "the table imports adapters"
assert aiter_like.tgemm.mm and aiter_like.GateMode.SEPARATED == "separated"
assert "transformers" not in sys.modules and "vllm" not in sys.modules
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_pages_are_the_table():
    """`aiter-like names --write` brings them up to date."""
    folder = aiter_table.FOLDER
    found = {str(path.relative_to(folder)): path.read_text()
             for path in (folder / "AITER.md", *(folder / "pages").glob("*.md"))}
    assert found == aiter_table.pages()
    text = "\n".join(found.values())
    assert all(text.count(f"\n| `{row.name}` | `{row.modules[0]}` |") >= 1 for row in ROWS)
    assert len(re.findall(r"^\| `.*` \| `aiter", text, re.MULTILINE)) == len(ROWS)
    assert text.count("| **missing**: use ") == sum(row.server is None for row in ROWS)


@named([row for row in ROWS if row.server is not None and not row.is_kept
        and row.section in ("norm", "attention", "rope", "activation")])
def test_kernels_stand_behind_the_families(row):
    """Exceptions: what says sizes, and operators with a HIP kernel alone."""
    expected = {"get_pa_metadata_info_v1": set(), "fused_qk_rope_concat_and_cache_mla": {"hip", "torch"},
                **dict.fromkeys(("fused_kv_norm_rope_group_quant", "fused_qk_norm_rope_group_quant"), {"hip", "torch"})}
    assert expected.get(row.name, {"triton", "torch"}) <= set(aiter_table.backends(row.value))


def test_backends_are_those_of_the_operators_behind_a_function():
    assert aiter_table.backends(aiter.rms_norm) == ("hip", "asm", "triton", "torch")
    assert aiter_table.backends(aiter.swap_blocks) == ("hip", "torch")
    assert aiter_table.backends(aiter.shuffle_weight) == aiter_table.backends(aiter.gemm_a8w8_mxfp8) == ()


def test_command_prints_and_writes_the_pages(capsys, monkeypatch, tmp_path):
    assert cli.main(["names"]) == 0 and capsys.readouterr().out == "\n".join(aiter_table.pages().values()) + "\n"
    monkeypatch.setattr(aiter_table, "FOLDER", tmp_path)
    assert cli.main(["names", "--write"]) == 0
    assert {page: (tmp_path / page).read_text() for page in aiter_table.pages()} == aiter_table.pages()


# ---- what the table names beside the operators


def test_questions_about_the_machine():
    target = device.default_target()
    assert (aiter.get_gfx(), aiter.get_gfx_runtime(), aiter.get_cu_num()) == (target.arch, target.arch, target.cu_num)
    assert aiter.get_gemm_config("GEMM-A16W16", 16) == ({}, False)
    assert aiter.e4m3_dtype == aiter.dtypes.fp8 and not aiter.ENABLE_CK


@pytest.mark.parametrize(("arch", "sizes", "dtype", "is_plain", "is_shuffled"), [
    ("gfx942", (1, 4096, 4096), torch.float8_e4m3fnuz, True, True),
    ("gfx942", (512, 64, 1024), torch.int8, True, True),
    ("gfx942", (1, 4096, 48), torch.float8_e4m3fnuz, True, False),  # shuffle_weight takes whole packs of 32
    ("gfx942", (1, 4100, 64), torch.float8_e4m3fnuz, True, False),
    ("gfx942", (1, 64, 40), torch.float8_e4m3fnuz, False, False),
    ("gfx942", (1, 64, 64), torch.float8_e4m3fn, False, False),
    ("sm_90", (1, 64, 64), torch.int8, False, False)], ids=str)
def test_vllm_is_told_where_products_of_8_bits_are_ours(arch, sizes, dtype, is_plain, is_shuffled):
    """It then calls gemm_a8w8_CK, or shuffles the weights once and calls gemm_a8w8_bpreshuffle."""
    files = aiter.AITER_CONFIGS
    with device.planning_for(arch):
        for file, expected in ((files.AITER_CONFIG_GEMM_A8W8_FILE, is_plain),
                               (files.AITER_CONFIG_GEMM_A8W8_BPRESHUFFLE_FILE, is_shuffled)):
            found = aiter.get_GEMM_config_with_quant_type(*sizes, dtype, file)
            assert (found is not None) == expected
            assert found is None or found["libtype"] == "ck" and found["kernelName"].startswith("gemm_a8w8")


def test_vllm_keeps_its_products_of_8_bits_on_the_simulator(monkeypatch):
    ask = functools.partial(aiter.get_GEMM_config_with_quant_type, 1, 64, 64, torch.int8, "")
    device.use_simulator(True)
    try:
        assert ask() is None
        monkeypatch.setenv("AITER_LIKE_BACKENDS", "ck,triton")
        assert ask() is not None
    finally:
        device.reset()


def test_tables_of_aiters_form_have_its_columns_and_no_row():
    for name, file in vars(aiter.AITER_CONFIGS).items():
        head, *rows = Path(file).read_text().splitlines()
        is_first = head.split(",")[0] == ("cu_num" if name == "AITER_CONFIG_FMOE_FILE" else "gfx")
        assert is_first and "kernelName" in head and not rows, name


def test_disabled_all_reduce():
    comm = aiter.CustomAllreduce(None, torch.device("cpu"))
    x = torch.ones(2)
    assert comm.disabled and not comm.should_custom_ar(x) and comm.custom_all_reduce(x) is None
    assert comm.world_size == 1
    with comm.capture():
        comm.close()


def test_names_of_triton_kernels():
    class Specialization:
        constants = {"BLOCK": 64, "ACC": True, "act": "silu-2", "none": None, "list": [1, 2.0], "who": "my.kernel"}

    name = aiter.make_kernel_repr("gemm", ["BLOCK", "ACC", "act", "none", "list", "absent"])(Specialization())
    assert name == "gemm_BLOCK_64_ACC_1_act_SILU_2_none_NONE_list_1_2_absent_NONE"
    assert aiter.make_kernel_repr("gemm", [], name_key="who")(Specialization()) == "my_kernel"
    assert aiter.make_kernel_repr("gemm", [], name_key="nobody")(Specialization()) == "gemm"


def test_weights_of_experts_are_shuffled_as_weights():
    x = torch.arange(2 * 32 * 64, dtype=torch.bfloat16).view(2, 32, 64)
    assert torch.equal(aiter.moe_shuffle_weight(x), aiter.shuffle_weight(x))
    assert torch.equal(aiter.shuffle_weight_a16w4(x, 16, True),
                       aiter.shuffle_weight(x, (16, 16), is_guinterleave=True, gate_up=True))
    scales = torch.ones(3, 5)
    assert aiter.e8m0_shuffle(scales) is scales and torch.equal(
        aiter.e8m0_shuffle(scales.byte()), aiter.shuffle_scale(scales.byte()))
    assert aiter.moe_shuffle_scale(scales) is scales and aiter.shuffle_scale_a16w4(scales, 1, True) is scales


def test_check_of_closeness_raises():
    a, b = torch.ones(100), torch.ones(100)
    assert aiter.checkAllclose(a, b) == 0
    a[:3] = 2
    assert aiter.checkAllclose(a, b) == pytest.approx(0.03)
    for limits in ({"tol_err_ratio": 0.01}, {"max_abs_delta": 0.5}):
        with pytest.raises(AssertionError, match="scaled: 3.00% of 100 elements differ"):
            aiter.checkAllclose(a, b, msg="scaled", **limits)
    a[0] = torch.nan
    with pytest.raises(AssertionError):
        aiter.checkAllclose(a, b, catastrophic_check=True)


def test_stop_watch():
    calls = []
    out, microseconds = aiter.run_perftest(lambda x, y=0: calls.append(x) or x + y, 2, num_iters=5, num_warmup=1, y=3)
    assert out == 5 and microseconds > 0 and len(calls) == 6
    with pytest.raises(UnsupportedError):
        aiter.run_perftest(len, [], testGraph=True)

    @aiter.perftest(num_iters=3, num_warmup=0)
    def timed(x, scale=2):
        return x * scale

    assert timed(4, scale=5)[0] == 20

    @aiter.benchmark()
    def collected(rows, cols=3):
        return {"us": rows}

    assert collected(1) == {"rows": 1, "cols": 3, "us": 1}
