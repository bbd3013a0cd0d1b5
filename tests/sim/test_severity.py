# SPDX-License-Identifier: MIT
"""Errors and notes: what breaks on the hardware, and what LLVM or a manual demands though shipped kernels omit it."""

import numpy as np
import pytest
from asm import run
from checking import listing

from aiter_like import sim
from aiter_like.errors import SimulatorError

_LANES = np.arange(64, dtype=np.uint32)
_END = "\ns_waitcnt vmcnt(0) lgkmcnt(0)\n" + "s_nop 7\n" * 3
# Name → body, its check, and what its only report says. s[10:11] is a buffer of 64 dwords, s[12:15] its descriptor.
_NOTES = {
    "mask": (f"v_cmp_lt_u32 vcc, v0, v1\nv_cndmask_b32 v2, v0, v1, vcc{_END}", "waitstate", "needed by LLVM's hazard"),
    "sgpr": (f"v_readfirstlane_b32 s20, v0\nv_add_u32 v2, s20, v1{_END}", "waitstate", "VALU writes SGPR to VALU"),
    "matrix result": (f"v_mfma_f32_16x16x16_f16 v[8:11], v[2:3], v[4:5], 0\nv_mov_b32 v6, v8{_END}", "waitstate",
                      "XDL result to VALU"),
    "carry": (f"v_add_co_u32 v2, s[20:21], v0, v1\ns_nop 0\nv_addc_co_u32 v2, vcc, v0, v1, s[20:21]{_END}", "waitstate",
              "1 wait states after"),
    "dpp": (f"v_mov_b32 v2, -1\nv_mov_b32_dpp v2, v2 row_shl:8 bound_ctrl:1{_END}", "waitstate",
            "VALU result to DPP (v2)"),
    "dpp's other source": (f"v_mov_b32 v1, v0\nv_add_u32_dpp v3, v0, v1 row_shl:1{_END}", "waitstate",
                           "2 are needed by"),
    "m0": (f"s_mov_b32 m0, 0\nglobal_load_lds_dword v1, s[10:11]{_END}", "waitstate", "CDNA3 ISA document"),
    "soffset": ("s_mov_b64 s[12:13], s[10:11]\ns_movk_i32 s14, 256\ns_mov_b32 s15, 0x20000\ns_movk_i32 s16, 4\n"
                f"buffer_load_dword v2, v1, s[12:15], s16 offen{_END}", "bounds", "ISA document's text"),
}


def _run(body: str, checks: str | bool) -> list[dict]:
    with sim.enabled(checks, on_report="collect") as session:
        run(body, {"v0": _LANES, "v1": _LANES * 4}, {}, buffers={"s[10:11]": _LANES}, lds_bytes=512)
    return session.reports


@pytest.mark.parametrize("body, check, phrase", _NOTES.values(), ids=_NOTES)
def test_what_somebody_demands_is_a_note_and_an_error_when_strict(body, check, phrase):
    for checks, severity, mark in ((True, "note", ", note] "), ("strict", "error", "] ")):
        (report,) = _run(body, checks)
        assert report["severity"] == severity and report["check"] == check, listing([report])
        assert report["summary"].startswith(f"[sim:{check}{mark}") and phrase in report["message"], listing([report])


def test_notes_do_not_raise_and_errors_do():
    body, inputs = _NOTES["mask"][0], {"v0": _LANES, "v1": _LANES}
    with sim.enabled() as session:
        sim.checked_call("masked", lambda: run(body, inputs), (), None)
        assert [report["severity"] for report in session.reports] == ["note"]
        with pytest.raises(SimulatorError, match="broken: 1 report") as error:
            sim.checked_call("broken", lambda: run(f"{body}v_exp_f32 v2, v0\nv_mov_b32 v3, v2", inputs), (), None)
    assert [report["severity"] for report in error.value.reports] == ["error"]
    with sim.enabled("strict"), pytest.raises(SimulatorError, match="masked: 1 report"):
        sim.checked_call("masked", lambda: run(body, inputs), (), None)


def test_a_note_hides_no_error_of_its_instruction():
    body = f"v_cmp_lt_u32 vcc, v0, v1\nv_exp_f32 v3, v0\nv_cndmask_b32 v2, v3, v1, vcc{_END}"
    (report,) = _run(body, True)
    assert report["severity"] == "error" and "transcendental" in report["message"], listing([report])


def test_lds_runs_in_the_order_of_issue():
    """A store that its wave has not waited for at the barrier; of an LDS-DMA the same is an error."""
    end = f"s_barrier\nds_read_b32 v3, v2{_END}"
    lanes = {"v1": np.arange(128, dtype=np.uint32) * 4, "v2": np.arange(128, dtype=np.uint32)[::-1] * 4}
    for body, severity in (("ds_write_b32 v1, v1\n", "note"),
                           ("s_mov_b32 m0, 0\ns_nop 0\nglobal_load_lds_dword v1, s[10:11]\n", "error")):
        with sim.enabled("wait", on_report="collect") as session:
            run(body + end, lanes, {}, buffers={"s[10:11]": np.zeros(128, np.uint32)}, waves=2, lds_bytes=512)
        assert {report["severity"] for report in session.reports} == {severity}, listing(session.reports)


@pytest.mark.parametrize("stride, reported", [(0, False), (4, True)])
def test_two_waves_that_load_equal_values_to_one_place(stride, reported):
    """Each wave's LDS-DMA fills the same 256 bytes, from one place of memory or from its own."""
    offset = np.tile(_LANES * 4, 2) + np.repeat([0, stride], 64).astype(np.uint32)
    body = f"s_mov_b32 m0, 0\ns_nop 0\nglobal_load_lds_dword v1, s[10:11]\ns_waitcnt vmcnt(0)\ns_barrier{_END}"
    with sim.enabled(on_report="collect") as session:
        run(body, {"v1": offset}, {}, buffers={"s[10:11]": np.arange(128, dtype=np.uint32)}, waves=2, lds_bytes=512)
    assert [report["check"] for report in session.reports] == ["lds_race"] * reported, listing(session.reports)
