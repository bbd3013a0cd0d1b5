# SPDX-License-Identifier: MIT
"""AITER's tuned tables: all nine kinds with their irregular spellings; what maps, what does not, hints that count."""

from types import SimpleNamespace

import pytest

from aiter_like import cli, dispatch
from aiter_like.errors import TuningError
from aiter_like.tuning import aiter_tables, shapes
from aiter_like.tuning.candidates import Plan, Trial

# Those of operators that are still to come; the others are the operators' own.
FIELDS = {
    "gemm_a4w4_blockscale": ("m", "n", "k"),
    "fused_moe": ("num_tokens", "hidden_size", "intermediate_size", "num_experts", "topk", "dtype", "a_dtype",
                  "q_type_layout", "use_g1u1"),
}
OPS = {name: SimpleNamespace(name=name, tune_fields=fields) for name, fields in FIELDS.items()} | {
    name: dispatch.OPS[name] for name in aiter_tables.TABLES.values() if name not in FIELDS}
VALUES = "kernelId,splitK,us,kernelName,tflops,bw,errRatio"

CASES = {
    "a8w8_tuned_gemm": (f"gfx,cu_num,M,N,K,q_dtype_w,{VALUES}", "gfx942,304,64,1536,5120,torch.int8,3,2,9.1,ck,1,2,0.0",
                        (64, 1536, 5120, "i8", 0, 0), {"split_k": "2"}),
    "a8w8_bpreshuffle_tuned_gemm_x": (
        f"gfx,cu_num,M,N,K,q_dtype_w,libtype,{VALUES}",
        "gfx942,304,64,1536,5120,torch.float8_e4m3fnuz,asm,0,8,9,_Z,1,2,0",
        (64, 1536, 5120, "fp8_e4m3fnuz", 16, 0), {"backend": "asm", "split_k": "8"}),
    "a8w8_blockscale_tuned_gemm_ds_v3": (f"gfx,cu_num,M,N,K,libtype,{VALUES}", "gfx942,304,1,2,3,cktile,0,0,9,x,1,2,0",
                                         (1, 2, 3, 0), {"backend": "ck", "split_k": "0"}),
    "a8w8_blockscale_bpreshuffle_tuned_gemm": (f"gfx,cu_num, M,N ,K,libtype,{VALUES}",
                                               "gfx950, 256 ,16,2,3,triton,0,1,9,x,1,2,0%", (16, 2, 3, 1),
                                               {"backend": "triton", "split_k": "1"}),
    "a4w4_blockscale_tuned_gemm": (f"gfx,cu_num,M,N,K,{VALUES}", "gfx950,256,1,2,3,0,0,9,x,1,2,0", (1, 2, 3),
                                   {"split_k": "0"}),
    "a8w8_tuned_batched_gemm": (f"gfx,cu_num,B,M,N,K,{VALUES}", "gfx942,80,16,1,2,3,0,0,9,x,1,2,0",
                                (16, 1, 2, 3, "i8", "bf16"), {"split_k": "0"}),
    "bf16_tuned_batched_gemm": (f"gfx,cu_num,B,M,N,K,{VALUES}", "gfx942,80,16,1,2,3.0,0,0,9,x,1,2,0",
                                (16, 1, 2, 3, "bf16", "bf16"), {"split_k": "0"}),
    "dsv3_bf16_tuned_gemm": (
        "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,err_ratio,"
        "tflops,bw",
        "gfx942,304,1,2,3,False,torch.bfloat16,torch.float32,False,True,hipblaslt,12,0,9,,0.0,1,2",
        (1, 2, 3, "bf16", "fp32", 1, 0), {"backend": "torch", "split_k": "0"}),
    "tuned_fmoe": (
        "cu_num,token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u1,"
        "doweight_stage1,block_m,ksplit,us1,kernelName1,err1,us2,kernelName2,err2,us,run_1stage,xbf16,tflops,bw,_tag",
        "80,4,2304,1536,8,2,ActivationType.Gelu,torch.bfloat16,torch.float8_e4m3fnuz,torch.float8_e4m3fnuz,"
        "QuantType.per_Token,1,1,32,0,17.8,_Z,0.0%,14.5,moe,0.0%,32.3,0,0,5.26,2629.41,",
        (4, 2304, 1536, 8, 2, "bf16", "fp8_e4m3fnuz", "per_token", 1), {"block_m": "32", "split_k": "0"}),
}


def write(tmp_path, stem, *lines):
    path = tmp_path / f"{stem}.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("stem", CASES)
def test_every_table(tmp_path, stem):
    header, row, key, hint = CASES[stem]
    found = aiter_tables.read(write(tmp_path, stem, header, row), OPS)
    assert found.keys == {key: hint} and not found.problems and not found.dropped
    arch = "gfx950" if "256" in row.split(",")[1] or row.startswith("gfx950") else "gfx942"
    assert dict(found.rows) == {arch: 1}


def test_untuned_twin_has_shapes_alone(tmp_path):
    found = aiter_tables.read(write(tmp_path, "a8w8_blockscale_untuned_gemm", "M,N,K", "1,2,3"), OPS)
    assert found.op == "gemm_a8w8_blockscale" and found.keys == {(1, 2, 3, 0): {}}


def test_what_does_not_map_is_counted(tmp_path):
    header, row = CASES["a4w4_blockscale_tuned_gemm"][:2]
    files = [write(tmp_path, "a4w4_blockscale_tuned_gemm", header, row, row.replace(",1,2,3", ",2,2,3"), row + ",9",
                   row.replace(",1,2,3", ",x,2,3")),
             write(tmp_path, "conv3d_bf16_tuned", "M,N", "1,2"), write(tmp_path, "bf16_tuned_gemm", "M,N,K", "1,2,3")]
    imported = [aiter_tables.read(path, OPS) for path in files]
    assert aiter_tables.coverage(imported) == [
        "a4w4_blockscale_tuned_gemm.csv: 3 gfx950; 2 shapes for gemm_a4w4_blockscale",
        f"  {files[0]}:4: 1 cells too many", f"  {files[0]}:5: could not convert string to float: 'x'",
        "conv3d_bf16_tuned.csv: 1 unknown architecture; 0 shapes for no operator",
        "  1 rows not kept: no table of this name is known",
        "bf16_tuned_gemm.csv: 1 unknown architecture; 0 shapes for gemm_a16w16",
        "  1 rows not kept: no column for dtype, out_dtype", "3 files, 5 rows, 2 shapes kept"]
    assert dict(aiter_tables.read(files[0], {}).dropped) == {"no operator gemm_a4w4_blockscale": 3}
    with pytest.raises(TuningError, match="absent.csv:0: cannot be read"):
        aiter_tables.read(tmp_path / "absent.csv", OPS)


def test_a_dtype_that_nothing_takes_is_no_mistake_of_the_file(tmp_path):
    header, row = CASES["a8w8_tuned_gemm"][:2]
    path = write(tmp_path, "a8w8_tuned_gemm", header, row.replace("torch.int8", "torch.complex64"),
                 row.replace("torch.int8", "torch.int88"))
    found = aiter_tables.read(path, OPS)
    assert dict(found.dropped) == {"no operator takes dtype torch.complex64": 1}
    assert found.problems == [f"{path}:3: module 'torch' has no attribute 'int88'"]


def test_shape_file_and_its_hints_reach_the_tuner(tmp_path):
    header, row, _, _ = CASES["a8w8_bpreshuffle_tuned_gemm_x"]
    imported = aiter_tables.read(write(tmp_path, "a8w8_bpreshuffle_tuned_gemm", header, row), OPS)
    text = aiter_tables.shape_files([imported], OPS)["gemm_a8w8"]
    assert text == ("m,n,k,weight_dtype,band,use_fast_accum,hint_backend,hint_split_k\n"
                    "64,1536,5120,fp8_e4m3fnuz,16,0,asm,8\n")
    (tmp_path / "shapes.csv").write_text(text)
    fields = OPS["gemm_a8w8"].tune_fields
    ((key, hint),) = shapes.read_hinted(tmp_path / "shapes.csv", "gemm_a8w8", fields)
    assert key == {"m": 64, "n": 1536, "k": 5120, "weight_dtype": "fp8_e4m3fnuz", "band": 16, "use_fast_accum": 0}
    trials = [Trial(backend, "kernel", params, "", "") for backend, params in (
        ("triton", {}), ("triton", {"splitK": 4}), ("triton", {"SPLIT_K": 8}), ("asm", {}), ("asm", {"split_k": 8}))]
    plan = Plan(trials, 1, {}, 1, 1).hinted(hint)
    assert plan.trials == [trials[index] for index in (0, 4, 2, 3, 1)] and plan.default == 4


def test_command(tmp_path, capsys):
    header, row, _, _ = CASES["a4w4_blockscale_tuned_gemm"]
    path = write(tmp_path, "a4w4_blockscale_tuned_gemm", header, row)
    assert cli.main(["tune", "--import-aiter", str(path), "--output", str(tmp_path / "out")]) == 1
    out = capsys.readouterr().out
    assert "1 rows not kept: no operator gemm_a4w4_blockscale" in out and not (tmp_path / "out").exists()
    assert cli.main(["tune"]) == 1 and "which operator?" in capsys.readouterr().err
