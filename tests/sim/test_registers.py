# SPDX-License-Identifier: MIT
"""v registers beyond ACCUM_OFFSET: a(n) is v(ACCUM_OFFSET + n), in one file, as hand-written kernels use it."""

import numpy as np
import pytest
from asm import assemble, run
from checking import reports
from hip_runtime import HipError, runtime
from test_decode import KERNEL

from aiter_like.sim.library import disassemble

_LANES = np.arange(64, dtype=np.uint32)
_NOPS = "\n" + "s_nop 7\n" * 3


def test_both_names_are_one_register():
    body = """v_accvgpr_write_b32 a5, v0
v_mov_b32 v200, v1
v_mov_b32 v2, v133
v_accvgpr_read_b32 v3, a72
v_add_u32 v133, v133, v133
v_accvgpr_read_b32 v4, a5
global_load_dwordx4 v[126:129], v5, s[8:9]
s_waitcnt vmcnt(0)
v_accvgpr_read_b32 v6, a1
v_mov_b32 v7, v126"""
    data = np.arange(256, dtype=np.uint32)
    out = run(body, {"v0": _LANES, "v1": _LANES + 7, "v5": _LANES * 16}, ("v2", "v3", "v4", "v6", "v7"),
              buffers={"s[8:9]": data}, accum_offset=128)
    for name, expected in (("v2", _LANES), ("v3", _LANES + 7), ("v4", 2 * _LANES), ("v6", _LANES * 4 + 3),
                           ("v7", _LANES * 4)):
        np.testing.assert_array_equal(out[name], expected, err_msg=name)


@pytest.mark.parametrize("accum_offset", [64, 100, 240])
def test_a_matrix_result_is_read_by_either_name(accum_offset):
    """The product of ones and twos over K = 16, into a[0:3], then through v registers around ACCUM_OFFSET."""
    first = accum_offset
    body = f"v_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], 0{_NOPS}v_add_f32 v4, v{first}, v{first + 3}{_NOPS}" \
           f"v_mov_b32 v{first + 1}, v4\nv_mfma_f32_4x4x1_16b_f32 a[0:3], v6, v7, a[0:3]{_NOPS}" \
           "v_accvgpr_read_b32 v5, a1"
    one, two = (np.full((64, 4), value, np.float16) for value in (1, 2))
    out = run(body, {"v[0:1]": one, "v[2:3]": two, "v6": np.zeros(64, np.float32), "v7": np.zeros(64, np.float32)},
              {"v4": np.float32, "v5": np.float32}, accum_offset=accum_offset)
    assert (out["v4"] == 64).all() and (out["v5"] == 64).all()


def test_checkers_see_one_register_and_name_it_by_both():
    (late,) = reports("global_load_dword v133, v1, s[8:9]\nv_accvgpr_read_b32 v2, a5\ns_waitcnt vmcnt(0)",
                      {"v1": _LANES * 4}, buffers={"s[8:9]": _LANES}, accum_offset=128)
    assert late["check"] == "wait" and "reads v133 (a5)" in late["message"]
    (undefined,) = reports("global_store_dword v1, a140, s[8:9]\ns_waitcnt vmcnt(0)\nv_mov_b32 v133, 0",
                           {"v1": _LANES * 4}, buffers={"s[8:9]": _LANES}, accum_offset=128)
    assert undefined["check"] == "uninit" and "stores a140" in undefined["message"]


def _errors(body: str, registers: int) -> list[str]:
    text = KERNEL.format(body=body).replace("next_free_vgpr 128", f"next_free_vgpr {registers}")
    return [error for _, _, error in disassemble(assemble(text)) if error and "end of a function" not in error]


@pytest.mark.parametrize("body, error", [
    ("v_mov_b32 v103, v96\nv_accvgpr_read_b32 v1, a39", ""),
    ("v_mov_b32 v104, v96", "v104 is beyond the registers that kernel probe allocates"),
    ("v_mov_b32 v103, v96\nv_accvgpr_read_b32 v1, a40", "v104 is beyond"),
    ("v_mov_b32 v63, v62\nv_accvgpr_read_b32 v1, a40", "a40 is beyond"),
    ("v_mov_b32 v70, v62\ns_swappc_b64 s[4:5], s[6:7]", ""),
])
def test_the_descriptors_total_is_the_limit(body, error):
    """ACCUM_OFFSET is 64, 104 registers are allocated."""
    found = _errors(body, 104)
    assert (error in found[0] and len(found) == 1) if error else not found


def test_calls_of_functions_whose_registers_lie_elsewhere():
    text = KERNEL.format(body="v_mov_b32 v70, v62\ns_swappc_b64 s[4:5], s[6:7]")
    function = ".text\n.type callee,@function\ncallee:\nv_accvgpr_read_b32 v1, a0\ns_setpc_b64 s[4:5]\n" \
               ".size callee, .-callee\n"
    (error,) = [error for _, _, error in disassemble(assemble(text + function)) if error and "end of a" not in error]
    assert "calls functions with accumulation registers" in error


def test_two_kernels_that_are_one_function_are_refused():
    text = KERNEL.format(body="v_mov_b32 v70, v62")
    twin = text[text.index(".amdhsa_kernel"):].replace("probe", "other").replace("accum_offset 64", "accum_offset 128")
    elf = assemble(f"{text}\n.globl other\n.type other,@function\n.set other, probe\n{twin}")
    with pytest.raises(HipError, match="are one function, which uses v registers beyond"), runtime().module(elf):
        pass
