# SPDX-License-Identifier: MIT
"""printf and assert in HIP kernels: texts against C's own printf, with every checker on; what an assert says."""

import ctypes

import pytest
import torch
from talking import bytes_of, compiled, launch

from aiter_like import sim
from aiter_like.errors import SimulatorError
from aiter_like.sim import state

DIVERGENT = r"""
extern "C" __global__ void talk(const float* x, const char* name, int* counts, int n) {
  const int i = group() * 65 + lane();
  if (lane() % 3 == 1) counts[i] = printf("lane %d: %d of %s has %f\n", lane(), i, name, x[i]);
  else if (lane() % 3 == 2) {
    counts[i] = printf("%5.2f|%-6d|%#x|%c|%p|%s|%%|%lu|%hhd\n", x[i], i, i + 1, 'a' + i % 26, (void*)16,
                       "of more than fifty-six characters, which take two packets", 1ul << 40, 300);
    for (int k = 0; k < lane() % 2; ++k) printf("again %u\n", lane());
  }
}
"""


def first_line(group: int, lane: int) -> str:
    """What the lane prints first; nothing for each third lane."""
    i = group * 65 + lane
    return ["", f"lane {lane}: {i} of vector has {i / 4:f}",
            f"{i / 4:5.2f}|{i:<6d}|{i + 1:#x}|{chr(97 + i % 26)}|0x10|"
            f"of more than fifty-six characters, which take two packets|%|{1 << 40}|44"][lane % 3]


def divergent_lines(group: int, wave: int) -> list[str]:
    """What the wave prints, branch by branch."""
    lanes = [lane for lane in range(65) if lane // 64 == wave]
    return [*(first_line(group, lane) for branch in (1, 2) for lane in lanes if lane % 3 == branch),
            *(f"again {lane}" for lane in lanes if lane % 3 == 2 and lane % 2)]


@pytest.mark.parametrize("flags", [("-O2",), ("-O0",)], ids=" ".join)
def test_divergent_lanes(flags):
    x = torch.arange(3 * 65, dtype=torch.float32) / 4
    counts = torch.full((3 * 65,), -1, dtype=torch.int32)
    with sim.enabled(checks="all") as session:
        launch(compiled(DIVERGENT, *flags), x, bytes_of("vector"), counts, 195, grid=3, block=65)
    assert session.reports == []
    lines = session.output.splitlines()
    for group in range(3):
        both = [divergent_lines(group, wave) for wave in (0, 1)]  # the second wave has one lane
        count = sum(map(len, both))
        part = lines[group * count:(group + 1) * count]
        assert sorted(part) == sorted(both[0] + both[1])
        for lines_of_wave in both:
            assert [line for line in part if line in lines_of_wave and line.startswith("lane")] == \
                [line for line in lines_of_wave if line.startswith("lane")]
    assert len(lines) == 3 * count
    assert counts.tolist() == [len(first_line(group, lane)) + 1 if lane % 3 else -1
                               for group in range(3) for lane in range(65)]


RAW = r"""
extern "C" __global__ void talk(const char* format, int a, int b, double c) {
  if (lane() == 0) printf(format, a, b, c);
}
"""
FORMATS = ["%d %i %f", "[%5d|%-5d|%+.3e]", "%05d %x %g", "%u %#o %G", "%hhd %hd %a", "%*d %.1f", "%c %d %10.4f",
           "%-*d|%A", "%#X % d %F", "100%% of %d", "%.8d%3d %E"]
ODD = [("%y %d", "%y 70000"), ("%d %", "70000 %"), ("%d %d %.0f %d %s", "70000 -3 2 %d %s"), ("", ""), ("%", "%"),
       ("%5", "%5"), ("%n%d %.1f", "-3 2.5"), ("%lld %zu", "70000 4294967293"), ("%ld %qd", "70000 4294967293"),
       ("%d%%%d", "70000%-3")]


def test_conversions_are_those_of_c():
    """Each format twice: by the kernel, and by the C library of this process."""
    code, libc = compiled(RAW), ctypes.CDLL(None)
    with sim.enabled(checks=True) as session:
        for wanted in FORMATS:
            launch(code, bytes_of(wanted + "\n"), 7, -3, 2.5)
    buffer, lines = ctypes.create_string_buffer(256), []
    for text in FORMATS:
        libc.snprintf(buffer, 256, text.encode(), ctypes.c_int(7), ctypes.c_int(-3), ctypes.c_double(2.5))
        lines.append(buffer.value.decode())
    assert session.output.splitlines() == lines


def test_what_c_leaves_undefined_is_printed_as_it_is():
    code = compiled(RAW)
    for text, wanted in ODD:
        with sim.enabled(checks=False) as session:
            launch(code, bytes_of(text), 70000, -3, 2.5)
        assert session.output == wanted, text
    with sim.enabled(checks=False), pytest.raises(SimulatorError, match="width or precision of 70000"):
        launch(code, bytes_of("%*d"), 70000, -3, 2.5)


LENGTHS = r"""
extern "C" __global__ void talk(const char* texts, int stride) {
  printf("<%s>%d\n", texts + lane() * stride, lane());
}
"""


def test_strings_of_every_length_in_one_call():
    """Packets hold 56 characters: lanes whose string has ended wait for the others."""
    words = ["".join(chr(97 + (i + lane) % 26) for i in range(lane * 2)) for lane in range(64)]
    texts = torch.zeros(64, 130, dtype=torch.uint8)
    for row, word in zip(texts, words):
        row[:len(word)] = torch.tensor([*word.encode()], dtype=torch.uint8)
    with sim.enabled(checks="all") as session:
        launch(compiled(LENGTHS), texts, 130)
    assert sorted(session.output.splitlines()) == sorted(f"<{word}>{lane}" for lane, word in enumerate(words))


ASSERTING = r"""
extern "C" __global__ void talk(const int* x, int limit) {
  printf("%d\n", x[lane()]);
  assert(x[lane()] < limit && "a value is too large");
}
"""


def test_assert_stops_the_launch_and_names_line_and_lanes(capsys):
    code, x = compiled(ASSERTING), torch.arange(100, dtype=torch.int32)
    said = "talk.hip:4: void talk(const int *, int): Device-side assertion `x[lane()] < limit && " \
           '"a value is too large"\' failed.'
    with sim.enabled(checks="all") as session:
        with pytest.raises(SimulatorError) as failure:
            launch(code, x, 97, block=100)
        launch(code, x, 100, block=100)
    told = str(failure.value)
    assert "wg(0,0,0) wave 1 " in told and "s_trap" in told and f"stopped itself in lanes 33-35: {said}" in told
    assert [report["check"] for report in session.reports] == ["launch"]
    assert session.reports[0]["lanes"] == 0b111 << 33 and session.reports[0]["wave"] == 1
    out, err = capsys.readouterr()
    assert err == (said + "\n") * 3 and len(out.splitlines()) == 200
    assert session.output.count(said) == 3


REQUESTS = r"""
extern "C" __global__ void talk(int service, int word) {
  aiter_like_hostcall::ask(service, word, 0, 64, 0, 0, 0, 0, 0);
}
"""


@pytest.mark.parametrize("service,word,told", [
    (1, 0, "calls of host functions are not supported"), (3, 4096, "of memory that malloc in kernels has not given"),
    (4, 0, "use the checker `bounds`"), (9, 0, "there is no service 9"),
    (2, 0x12320, "a part of a message that has not begun")])
def test_requests_that_are_not_served(service, word, told):
    with sim.enabled(checks=True), pytest.raises(SimulatorError, match=told):
        launch(compiled(REQUESTS), service, word)


def test_printf_into_a_buffer():
    """-mprintf-kind=buffered: a wave's text when the wave's workgroup ends, its asserts at once."""
    code = compiled(ASSERTING + DIVERGENT.replace("talk", "more"), "-mprintf-kind=buffered")
    x, values = torch.arange(128, dtype=torch.int32), torch.arange(65, dtype=torch.float32) / 4
    with sim.enabled(checks="all") as session:
        launch(code, x, 128, block=128)
        launch(code, values, bytes_of("vector"), torch.zeros(65, dtype=torch.int32), 65, kernel="more", block=65)
    assert session.reports == []
    lines = session.output.splitlines()
    assert lines[:128] == [str(i) for i in range(128)]
    assert sorted(lines[128:]) == sorted([*divergent_lines(0, 0), *divergent_lines(0, 1)])
    with sim.enabled(checks=False) as session, pytest.raises(SimulatorError, match="talk.hip:4"):
        launch(code, x, 64, block=128)
    assert {str(i) for i in range(128)} <= set(session.output.splitlines())


def test_a_session_keeps_so_much_and_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(state, "MOST_CHARACTERS", 10)
    kept = state.Output()
    for text in ("abcdef", "ghijkl", "mn"):
        kept.add(text)
    assert str(kept) == "abcdefghij\n[4 more characters were printed, but not kept]\n"


def test_an_undefined_argument_is_reported():
    source = r"""
extern "C" __global__ void talk() {
  __shared__ volatile int never_written[64];
  printf("%d\n", never_written[lane()]);
}
"""
    with sim.enabled(checks=True, on_report="collect") as session:
        launch(compiled(source))
    assert {report["check"] for report in session.reports} == {"uninit"}
    assert len(session.output.splitlines()) == 64


DAMAGING = r"""
extern "C" __global__ void talk(int ready, int next, int service, int word) {
  const auto* hidden = (const char __attribute__((address_space(4)))*)__builtin_amdgcn_implicitarg_ptr();
  auto& b = **(aiter_like_hostcall::Buffer* const __attribute__((address_space(4)))*)(hidden + 80);
  b.ready = static_cast<unsigned long>(ready);
  for (int i = 0; i < 2; ++i) {
    b.packets[i] = {static_cast<unsigned long>(next), ~0ul, static_cast<unsigned>(service), 1};
    for (int k = 0; k < 8; ++k) b.cells[i][lane()][k] = static_cast<unsigned long>(word) * (k + 1);
  }
  b.packets = nullptr;
  for (int i = 0; i < 3; ++i) __builtin_amdgcn_s_sendmsg(1, 0);
}
"""


@pytest.mark.parametrize("ready,next_,service,word", [(-1, -1, 2, 0xe3), (1, 1, 2, 0xe1), (3, 2, 2, -1), (1, 0, -1, 0),
                                                      (2, 7, 2, 0x3)])
def test_a_damaged_buffer_harms_nobody_but_the_launch(ready, next_, service, word):
    code = compiled(DAMAGING)
    with sim.enabled(checks=False) as session:
        try:
            launch(code, ready, next_, service, word)
        except SimulatorError as error:
            assert "hostcall" in str(error) or "printf" in str(error)
    assert len(session.output) < 1 << 20
    with sim.enabled(checks=True) as session:
        launch(compiled(RAW), bytes_of("%d"), 7, -3, 2.5)
    assert session.output == "7"
