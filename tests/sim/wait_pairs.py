# SPDX-License-Identifier: MIT
"""Pairs of instructions that need wait states, at least one per row of csrc/sim/checks/waitstate_table.cpp.

Read by test_check_waitstate.py (the simulator's checker) and test_waitstate_llvm.py (LLVM's hazard recogniser).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pair:
    """Two instructions, names of INSTRUCTIONS, and how many wait states must be between them; `row` of the table.

    LLVM knows of it since version `llvm`.
    """

    row: str
    earlier: str
    later: str
    states: int
    llvm: int = 0


# name → assembly, LLVM's machine instruction. Sources of MFMA: A v[2:3] (v2), B v[4:5] (v3).
INSTRUCTIONS = {
    "xdl2": ("v_mfma_f32_4x4x4_16b_f16 v[8:11], v[2:3], v[4:5], v[12:15]",
             "$v8:11 = V_MFMA_F32_4X4X4F16_vgprcd_e64 $v2:3, $v4:5, $v12:15, 0, 0, 0, MODE"),
    "xdl2 onto itself": ("v_mfma_f32_4x4x4_16b_f16 v[8:11], v[2:3], v[4:5], v[8:11]",
                         "$v8:11 = V_MFMA_F32_4X4X4F16_vgprcd_e64 $v2:3, $v4:5, $v8:11, 0, 0, 0, MODE"),
    "xdl4": ("v_mfma_f32_16x16x16_f16 v[8:11], v[2:3], v[4:5], v[12:15]",
             "$v8:11 = V_MFMA_F32_16X16X16F16_vgprcd_e64 $v2:3, $v4:5, $v12:15, 0, 0, 0, MODE"),
    "xdl4 onto itself": ("v_mfma_f32_16x16x16_f16 v[8:11], v[2:3], v[4:5], v[8:11]",
                         "$v8:11 = V_MFMA_F32_16X16X16F16_vgprcd_e64 $v2:3, $v4:5, $v8:11, 0, 0, 0, MODE"),
    "xdl A v8": ("v_mfma_f32_16x16x16_f16 v[24:27], v[8:9], v[4:5], v[28:31]",
                 "$v24:27 = V_MFMA_F32_16X16X16F16_vgprcd_e64 $v8:9, $v4:5, $v28:31, 0, 0, 0, MODE"),
    "xdl C v10": ("v_mfma_f32_16x16x16_f16 v[24:27], v[2:3], v[4:5], v[10:13]",
                  "$v24:27 = V_MFMA_F32_16X16X16F16_vgprcd_e64 $v2:3, $v4:5, $v10:13, 0, 0, 0, MODE"),
    "xdl8": ("v_mfma_f32_32x32x8_f16 v[32:47], v[2:3], v[4:5], v[64:79]",
             "$v32:47 = V_MFMA_F32_32X32X8F16_vgprcd_e64 $v2:3, $v4:5, $v64:79, 0, 0, 0, MODE"),
    "xdl16": ("v_mfma_f32_32x32x4_2b_f16 v[32:63], v[2:3], v[4:5], v[64:95]",
              "$v32:63 = V_MFMA_F32_32X32X4F16_vgprcd_e64 $v2:3, $v4:5, $v64:95, 0, 0, 0, MODE"),
    "f32 2": ("v_mfma_f32_4x4x1_16b_f32 v[8:11], v2, v3, v[12:15]",
              "$v8:11 = V_MFMA_F32_4X4X1F32_vgprcd_e64 $v2, $v3, $v12:15, 0, 0, 0, MODE"),
    "f32 8": ("v_mfma_f32_16x16x4_f32 v[8:11], v2, v3, v[12:15]",
              "$v8:11 = V_MFMA_F32_16X16X4F32_vgprcd_e64 $v2, $v3, $v12:15, 0, 0, 0, MODE"),
    "f32 A v8": ("v_mfma_f32_16x16x4_f32 v[24:27], v8, v3, v[28:31]",
                 "$v24:27 = V_MFMA_F32_16X16X4F32_vgprcd_e64 $v8, $v3, $v28:31, 0, 0, 0, MODE"),
    "f32 C v10": ("v_mfma_f32_16x16x4_f32 v[24:27], v2, v3, v[10:13]",
                  "$v24:27 = V_MFMA_F32_16X16X4F32_vgprcd_e64 $v2, $v3, $v10:13, 0, 0, 0, MODE"),
    "f32 16": ("v_mfma_f32_32x32x2_f32 v[32:47], v2, v3, v[64:79]",
               "$v32:47 = V_MFMA_F32_32X32X2F32_vgprcd_e64 $v2, $v3, $v64:79, 0, 0, 0, MODE"),
    "f64 large": ("v_mfma_f64_16x16x4_f64 v[8:15], v[2:3], v[4:5], v[16:23]",
                  "$v8:15 = V_MFMA_F64_16X16X4F64_vgprcd_e64 $v2:3, $v4:5, $v16:23, 0, 0, 0, MODE"),
    "f64 large onto itself": ("v_mfma_f64_16x16x4_f64 v[8:15], v[2:3], v[4:5], v[8:15]",
                              "$v8:15 = V_MFMA_F64_16X16X4F64_vgprcd_e64 $v2:3, $v4:5, $v8:15, 0, 0, 0, MODE"),
    "f64 A v8": ("v_mfma_f64_16x16x4_f64 v[24:31], v[8:9], v[4:5], v[32:39]",
                 "$v24:31 = V_MFMA_F64_16X16X4F64_vgprcd_e64 $v8:9, $v4:5, $v32:39, 0, 0, 0, MODE"),
    "f64 C v10": ("v_mfma_f64_16x16x4_f64 v[24:31], v[2:3], v[4:5], v[10:17]",
                  "$v24:31 = V_MFMA_F64_16X16X4F64_vgprcd_e64 $v2:3, $v4:5, $v10:17, 0, 0, 0, MODE"),
    "f64 C v8": ("v_mfma_f64_16x16x4_f64 v[24:31], v[2:3], v[4:5], v[8:15]",
                 "$v24:31 = V_MFMA_F64_16X16X4F64_vgprcd_e64 $v2:3, $v4:5, $v8:15, 0, 0, 0, MODE"),
    "f64 small": ("v_mfma_f64_4x4x4_4b_f64 v[8:9], v[2:3], v[4:5], v[6:7]",
                  "$v8:9 = V_MFMA_F64_4X4X4F64_vgprcd_e64 $v2:3, $v4:5, $v6:7, 0, 0, 0, MODE"),
    "f64 small onto itself": ("v_mfma_f64_4x4x4_4b_f64 v[8:9], v[2:3], v[4:5], v[8:9]",
                              "$v8:9 = V_MFMA_F64_4X4X4F64_vgprcd_e64 $v2:3, $v4:5, $v8:9, 0, 0, 0, MODE"),
    "read v8": ("v_mov_b32_e32 v96, v8", "$v96 = V_MOV_B32_e32 $v8, EXEC"),
    "read v32": ("v_mov_b32_e32 v96, v32", "$v96 = V_MOV_B32_e32 $v32, EXEC"),
    "write v9": ("v_mov_b32_e32 v9, v97", "$v9 = V_MOV_B32_e32 $v97, EXEC"),
    "write v12": ("v_mov_b32_e32 v12, v97", "$v12 = V_MOV_B32_e32 $v97, EXEC"),
    "write v66": ("v_mov_b32_e32 v66, v97", "$v66 = V_MOV_B32_e32 $v97, EXEC"),
    "write v2": ("v_mov_b32_e32 v2, v97", "$v2 = V_MOV_B32_e32 $v97, EXEC"),
    "read v2": ("v_mov_b32_e32 v96, v2", "$v96 = V_MOV_B32_e32 $v2, EXEC"),
    "store v8": ("global_store_dword v0, v8, s[10:11]",
                 "GLOBAL_STORE_DWORD_SADDR $v0, $v8, $s10:11, 0, 0, EXEC"),
    "store v33": ("global_store_dword v0, v33, s[10:11]",
                  "GLOBAL_STORE_DWORD_SADDR $v0, $v33, $s10:11, 0, 0, EXEC"),
    "load v8": ("global_load_dword v8, v0, s[10:11]", "$v8 = GLOBAL_LOAD_DWORD_SADDR $s10:11, $v0, 0, 0, EXEC"),
    "LDS write v33": ("ds_write_b32 v0, v33", "DS_WRITE_B32_gfx9 $v0, $v33, 0, 0, EXEC"),
    "fma64": ("v_fma_f64 v[40:41], v[42:43], v[44:45], v[46:47]",
              "$v40:41 = V_FMA_F64_e64 0, $v42:43, 0, $v44:45, 0, $v46:47, 0, 0, MODE"),
    "cmpx": ("v_cmpx_eq_u32_e32 vcc, v97, v97",
             "V_CMPX_EQ_U32_e32 $v97, $v97, implicit-def $exec, implicit-def $vcc, EXEC"),
    "cmp": ("v_cmp_eq_u32_e32 vcc, v97, v97", "V_CMP_EQ_U32_e32 $v97, $v97, implicit-def $vcc, EXEC"),
    "cndmask": ("v_cndmask_b32_e32 v96, v2, v3, vcc", "$v96 = V_CNDMASK_B32_e32 $v2, $v3, implicit $vcc, EXEC"),
    "div_fmas": ("v_div_fmas_f32 v96, v2, v3, v4",
                 "$v96 = V_DIV_FMAS_F32_e64 0, $v2, 0, $v3, 0, $v4, 0, 0, implicit $vcc, MODE"),
    "dpp v2": ("v_mov_b32_dpp v96, v2 quad_perm:[0,1,2,3] row_mask:0xf bank_mask:0xf",
               "$v96 = V_MOV_B32_dpp $v96, $v2, 228, 15, 15, 0, EXEC"),
    "first lane to s20": ("v_readfirstlane_b32 s20, v97", "$s20 = V_READFIRSTLANE_B32 $v97, EXEC"),
    "first lane to s10": ("v_readfirstlane_b32 s10, v98", "$s10 = V_READFIRSTLANE_B32 $v98, EXEC"),
    "first lane of v2": ("v_readfirstlane_b32 s21, v2", "$s21 = V_READFIRSTLANE_B32 $v2, EXEC"),
    "lane s20": ("v_readlane_b32 s21, v2, s20", "$s21 = V_READLANE_B32 $v2, $s20"),
    "lane 3": ("v_readlane_b32 s21, v2, 3", "$s21 = V_READLANE_B32 $v2, 3"),
    "add s20": ("v_add_u32_e32 v96, s20, v2", "$v96 = V_ADD_U32_e32 $s20, $v2, EXEC"),
    "exp v2": ("v_exp_f32_e32 v2, v3", "$v2 = V_EXP_F32_e32 $v3, MODE"),
    "half of v2": ("v_add_f16_sdwa v2, v3, v4 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:WORD_0 src1_sel:WORD_0",
                   "$v2 = V_ADD_F16_sdwa 0, $v3, 0, $v4, 0, 0, 5, 0, 4, 4, MODE"),
    "wide store": ("global_store_dwordx4 v0, v[8:11], s[10:11]",
                   "GLOBAL_STORE_DWORDX4_SADDR $v0, $v8:11, $s10:11, 0, 0, EXEC"),
    "wide buffer store": ("buffer_store_dwordx4 v[8:11], v0, s[24:27], 0 offen",
                          "BUFFER_STORE_DWORDX4_OFFEN_exact $v8:11, $v0, $s24:27, 0, 0, 0, 0, EXEC"),
    "wide buffer store at an SGPR": ("buffer_store_dwordx4 v[8:11], v0, s[24:27], s20 offen",
                                     "BUFFER_STORE_DWORDX4_OFFEN_exact $v8:11, $v0, $s24:27, $s20, 0, 0, 0, EXEC"),
    "dot": ("v_dot4_i32_i8 v2, v3, v4, v5", "$v2 = V_DOT4_I32_I8 8, $v3, 8, $v4, 8, $v5, 0, 0, 0, EXEC"),
    "dot A v2": ("v_dot4_i32_i8 v96, v2, v4, v5",
                 "$v96 = V_DOT4_I32_I8 8, $v2, 8, $v4, 8, $v5, 0, 0, 0, EXEC"),
    "dot C v2": ("v_dot4_i32_i8 v96, v3, v4, v2",
                 "$v96 = V_DOT4_I32_I8 8, $v3, 8, $v4, 8, $v2, 0, 0, 0, EXEC"),
    "m0": ("s_mov_b32 m0, 0", "$m0 = S_MOV_B32 0"),
    "LDS at M0": ("ds_read_addtid_b32 v96", "$v96 = DS_READ_ADDTID_B32 0, 0, implicit $m0, EXEC"),
    "LDS-DMA": ("global_load_lds_dword v0, s[10:11]",
                "GLOBAL_LOAD_LDS_DWORD_SADDR $s10:11, $v0, 0, 0, implicit $m0, EXEC"),
    "setreg": ("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), 15",
               "S_SETREG_IMM32_B32 15, 6401, implicit-def $mode, implicit $mode"),
    "getreg": ("s_getreg_b32 s20, hwreg(HW_REG_MODE)", "$s20 = S_GETREG_B32 63489, implicit $mode"),
}

PAIRS = (
    Pair("XDL result to VALU", "xdl2", "read v8", 5),
    Pair("XDL result overwritten by VALU", "xdl4", "write v9", 7),
    Pair("XDL result to memory", "xdl4", "load v8", 7),
    Pair("XDL result to memory", "xdl8", "store v33", 11),
    Pair("XDL result to memory", "xdl16", "LDS write v33", 19),
    Pair("XDL result to MFMA A or B", "xdl4", "xdl A v8", 7),
    Pair("two-pass MFMA result to the same C", "xdl2", "xdl2 onto itself", 2),
    Pair("two-pass MFMA result to the same C", "f32 2", "xdl2 onto itself", 2),
    Pair("XDL result to an overlapping C", "xdl4", "xdl C v10", 5),
    Pair("XDL C overwritten", "xdl2", "write v12", 1),
    Pair("XDL C overwritten", "xdl4", "write v12", 3),
    Pair("XDL C overwritten", "xdl8", "write v66", 7),
    Pair("XDL C overwritten", "xdl16", "write v66", 15),
    Pair("f32 MFMA result to VALU or memory", "f32 2", "read v8", 4),
    Pair("f32 MFMA result to VALU or memory", "f32 8", "store v8", 10),
    Pair("f32 MFMA result to VALU or memory", "f32 16", "read v32", 18),
    Pair("f32 MFMA result to MFMA A or B", "f32 8", "f32 A v8", 10),
    Pair("f32 MFMA result to an overlapping C", "f32 8", "f32 C v10", 8),
    Pair("f64 16x16 result to memory", "f64 large", "store v8", 18),
    Pair("f64 16x16 result to VALU", "f64 large", "read v8", 11),
    Pair("f64 16x16 result to VALU", "f64 large", "write v9", 11),
    Pair("f64 16x16 result overwritten by a load", "f64 large", "load v8", 11),
    Pair("f64 16x16 result to MFMA A or B", "f64 large", "f64 A v8", 11),
    Pair("f64 16x16 result to an overlapping C", "f64 large", "f64 C v10", 9),
    Pair("f64 4x4 result to memory", "f64 small", "store v8", 9),
    Pair("f64 4x4 result to VALU", "f64 small", "read v8", 6),
    Pair("f64 4x4 result overwritten by a load", "f64 small", "load v8", 6),
    Pair("f64 4x4 result to MFMA A or B", "f64 small", "f64 A v8", 6),
    Pair("f64 4x4 result to the same C", "f64 small", "f64 small onto itself", 4),
    Pair("f64 4x4 result to an overlapping C", "f64 small", "f64 C v8", 4),
    Pair("f64 MFMA to v_fma_f64", "f64 small", "fma64", 2),
    Pair("VALU result to MFMA", "write v2", "xdl4", 2),
    Pair("VALU writes EXEC, MFMA", "cmpx", "xdl4", 4),
    Pair("VALU result to DPP", "write v2", "dpp v2", 2),
    Pair("VALU writes EXEC, DPP", "cmpx", "dpp v2", 5),
    Pair("VALU writes SGPR to vector memory", "first lane to s10", "load v8", 5),
    Pair("VALU writes SGPR to VALU", "first lane to s20", "add s20", 2),
    Pair("VALU writes mask to VALU", "cmp", "cndmask", 2),
    Pair("VALU writes SGPR to lane select", "first lane to s20", "lane s20", 4),
    Pair("VALU writes VCC to v_div_fmas", "cmp", "div_fmas", 4),
    Pair("VALU writes EXEC, lane access", "cmpx", "lane 3", 4),
    Pair("VALU result to v_readlane", "write v2", "first lane of v2", 1),
    Pair("transcendental result to VALU", "exp v2", "read v2", 1),
    Pair("partial result to VALU", "half of v2", "read v2", 1),
    Pair("wide store's data overwritten", "wide store", "write v9", 2),
    Pair("wide store's data overwritten", "wide buffer store", "write v9", 2),
    Pair("data of a wide store at an SGPR offset overwritten", "wide buffer store at an SGPR", "write v9", 1, llvm=23),
    Pair("dot product to another operation", "dot", "read v2", 3),
    Pair("dot product to its own A or B", "dot", "dot A v2", 3),
    Pair("SALU writes M0 to its user", "m0", "LDS at M0", 1),
    Pair("SALU writes M0 to LDS-DMA", "m0", "LDS-DMA", 1),
    Pair("s_setreg to the same register", "setreg", "getreg", 2),
)

# Pairs that look like those above and need nothing.
FREE = (
    ("xdl4", "xdl4 onto itself"), ("f32 8", "xdl C v10"), ("f64 large", "f64 large onto itself"),
    ("f32 8", "write v12"), ("xdl4", "write v2"), ("write v2", "read v2"), ("first lane to s20", "add v2"),
    ("dot", "dot C v2"), ("store v8", "write v9"), ("xdl4", "read v2"),
)
INSTRUCTIONS["add v2"] = ("v_add_u32_e32 v96, s22, v2", "$v96 = V_ADD_U32_e32 $s22, $v2, EXEC")
