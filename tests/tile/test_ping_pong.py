# SPDX-License-Identifier: MIT
"""tile/ping_pong.h: the two groups alternate as its table says, which two buffers of each operand show."""

import itertools

import pytest
import torch
from tile_program import Program

from aiter_like.errors import SimulatorError

program = Program("tile/ping_pong.h", """
/// Multiplying n reads x[n] and y[n-1]. Doing the other part of n, group A writes x[n+1] and group B y[n+1];
/// IS_SWAPPED: group A writes y[n+1], whose place group B reads in that slot.
template <bool IS_SWAPPED, bool IS_JOINED>
__device__ void take_turns(const int* x, const int* y, int64_t count, int* out) {
  using Groups = PingPong<8>;
  __shared__ int xs[2][256], ys[2][256];
  const bool is_group_b = wave_index() / Groups::kGroupWaves == 1;
  const int i = thread_index() % 256;
  const auto write = [&](bool is_x, int n) {
    if (n < count) (is_x ? xs : ys)[n % 2][i] = (is_x ? x : y)[n * 256 + i];
    wait_lds();
  };
  write(is_group_b == IS_SWAPPED, 0);
  end_slot();
  Groups::stagger(is_group_b);
  for (int n = 0; n < count; ++n) {
    {
      const Priority priority;
      out[n * 512 + thread_index()] = xs[n % 2][255 - i] + (n > 0 ? ys[(n - 1) % 2][255 - i] : 0);
    }
    end_slot();
    write(is_group_b == IS_SWAPPED, n + 1);
    end_slot();
  }
  if (IS_JOINED) Groups::join(is_group_b);
}
""" + "".join(f"""
extern "C" __global__ void {name}(const int* x, const int* y, int64_t count, int* out) {{
  take_turns<{is_swapped}, {is_joined}>(x, y, count, out);
}}""" for name, is_swapped, is_joined in (("turns", "false", "true"), ("swapped", "true", "true"),
                                          ("apart", "false", "false"))))
priority = Program("tile/ping_pong.h", """
#include "aiter_like/math.h"
#include "aiter_like/mfma.h"
extern "C" __global__ void both(const Fragment* a, const float* x, Accumulator* sum, float* y) {
  const float value = x[thread_index()];
  const Fragment fragment = a[thread_index()];
  Accumulator product = {};
  {
    const Priority priority;
    product = mfma_16x16x16<bf16>(fragment, fragment, product);
  }
  y[thread_index()] = fast_exp2(value);
  sum[thread_index()] = product;
}
""")


def run(kernel: str, count: int) -> None:
    x, y = (torch.randint(1000, (max(count, 1), 256), dtype=torch.int32) for _ in range(2))
    out = torch.zeros(max(count, 1), 512, dtype=torch.int32)
    program(kernel, x, y, count, out, waves=8)
    for n in range(count):
        expected = (x[n] + (y[n - 1] if n else 0)).flip(0)
        assert torch.equal(out[n], torch.cat((expected, expected)))


def test_two_buffers_are_enough():
    for count in (0, 1, 2, 7):
        run("turns", count)


@pytest.mark.parametrize(("kernel", "report"), [("swapped", r"\[sim:lds_race\]"), ("apart", r"\[sim:\w+\].*barrier")])
def test_what_breaks_the_turns_is_seen(kernel, report):
    """The groups' parts exchanged; group B alone at the last barrier."""
    with pytest.raises(SimulatorError, match=report):
        run(kernel, 4)


def test_priority_is_that_of_its_scope():
    names = [text.split()[0] if "setprio" not in text else text for text in priority.instructions()]
    inside = [*itertools.takewhile(lambda name: name != "s_setprio 0", names[names.index("s_setprio 1") + 1:])]
    assert names.count("s_setprio 1") == names.count("s_setprio 0") == 1
    assert any(name.startswith("v_mfma") for name in inside)
    assert "v_exp_f32_e32" in names and "v_exp_f32_e32" not in inside
