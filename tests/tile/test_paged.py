# SPDX-License-Identifier: MIT
"""tile/paged.h: rows of pages come to the lanes that should have them, whatever the table and the lengths say."""

import pytest
import torch
from tile_program import Program

STRIPS, KEYS = 2, 32
PARAMETERS = "const int* entries, const char* data, char* rows, uint32_t* pairs, int64_t first, int64_t last_key"


def kernel(name: str, element: str, run: int, page_size: int) -> str:
    """Rows of 16 · run elements go to `rows` through LDS, and the pairs of each lane to `pairs`."""
    return f"""
extern "C" __global__ void {name}({PARAMETERS}) {{
  using Rows = GatheredRows<{element}, {run}, {STRIPS}>;
  using Lds = LdsTile<{element}, {KEYS}, {16 * run}, SwizzledByRow>;
  __shared__ Lds lds;
  PageTable table;
  table.entries = entries;
  table.last_page = 5;
  table.last_key = static_cast<int>(last_key);
  table.page_size.divisor = {page_size};
  table.page_size.shift = {31 + (page_size - 1).bit_length()};
  table.page_size.factor = {-(-2**(31 + (page_size - 1).bit_length()) // page_size)}u;
  constexpr int kRowBytes = {16 * run} * sizeof({element});
  const PagedHead head{{data, {page_size} * kRowBytes, kRowBytes}};
  KeyPlaces<{STRIPS}> places;
  places.load(table, static_cast<int>(first));
  Rows gathered;
  gathered.load(head.data, places.offset(table, head));
  gathered.store(lds);
  share_with_wave();
  for (int byte = lane_index() * 2; byte < {KEYS} * kRowBytes; byte += 128)
    *reinterpret_cast<uint16_t*>(rows + byte) = lds.at<uint16_t>(byte / kRowBytes, byte % kRowBytes);
  gathered.keep(3, 30);
  using P = Pieces<{run}>;
  for (int s = 0; s < {STRIPS}; ++s)
    for (int i = 0; i < 4; i += 2)
#pragma unroll
      for (int p = 0; p < P::kCount; ++p)
#pragma unroll
        for (int e = 0; e < P::len(p); ++e) {{
          const int column = 16 * P::first(p) + lane_index() % 16 * P::len(p) + e;
          const int row = 16 * s + lane_index() / 16 * 4 + i;
          pairs[(row / 2) * {16 * run} + column] = gathered.pair<bf16>(s, i, p, e);
        }}
}}
"""


FORMS = {"bf16_ones": ("bf16", 8, 1), "bf16_threes": ("bf16", 6, 3), "bf16_twelves": ("bf16", 4, 12),
         "fp8_fours": ("fp8", 6, 4), "int8_ones": ("int8_t", 16, 1), "int8_twos": ("int8_t", 4, 2)}
program = Program("tile/paged.h", "".join(kernel(name, *form) for name, form in FORMS.items()))
DTYPES = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fnuz, "int8_t": torch.int8}


@pytest.mark.parametrize("name", FORMS)
def test_rows_and_pairs(name):
    """Behind the last key stands the last key; a page beyond the cache is its last one; entries behind are not read."""
    element, run, page_size = FORMS[name]
    generator, columns = torch.Generator().manual_seed(0), 16 * run
    values = torch.randn(6, page_size, columns, generator=generator)
    data = (values * 40 if element == "int8_t" else values).to(DTYPES[element])
    last_key = 2 * page_size + 45 if page_size > 4 else 43  # the tile begins at key 16 and ends at 47
    count = last_key // page_size + 1
    entries = torch.randint(-2, 9, (count,), generator=generator, dtype=torch.int32)
    bits = data.view(torch.uint8).view(6, page_size, -1)
    rows = torch.zeros(KEYS, bits.shape[-1], dtype=torch.uint8)
    pairs = torch.zeros(KEYS // 2, columns, dtype=torch.int32)
    program(name, entries, data, rows, pairs, 16, last_key)
    keys = torch.arange(16, 16 + KEYS).clamp(max=last_key)
    pages = entries[keys // page_size].long()
    pages = torch.where((pages < 0) | (pages > 5), 5, pages)
    expected = bits[pages, keys % page_size]
    assert torch.equal(rows, expected)
    kept = expected.clone().view(data.dtype).float()
    kept[:3], kept[30:] = 0, 0
    if element == "int8_t":
        assert torch.equal(pairs.view(torch.bfloat16).view(KEYS // 2, columns, 2).transpose(1, 2).reshape(
            KEYS, columns).float(), kept)
        return
    halves = pairs.view(torch.int16).view(KEYS // 2, columns, 2).transpose(1, 2).reshape(KEYS, columns)
    assert torch.equal(halves.view(torch.bfloat16).float(), kept)


def test_pieces():
    """They cover a lane's elements once, whatever their number."""
    for run in range(2, 17, 2):
        count = run // 8 + run % 8 // 4 + run % 4 // 2
        lengths = [8 if p < run // 8 else 4 if p == run // 8 and run % 8 >= 4 else 2 for p in range(count)]
        firsts = [8 * p if p <= run // 8 else 8 * (run // 8) + 4 for p in range(count)]
        assert firsts == [sum(lengths[:p]) for p in range(count)] and sum(lengths) == run


WINDOW_KEYS, THREADS = 64, 256
window_program = Program("tile/paged.h", f"""
extern "C" __global__ void window(const int* entries, const char* k, const char* v, char* rows, int64_t first,
                                  int64_t last_key, int64_t lowest) {{
  using Keys = LdsTile<bf16, {WINDOW_KEYS}, 64, SwizzledByRow>;
  using Values = LdsTile<bf16, {WINDOW_KEYS}, 64, SwizzledByColumn>;
  __shared__ Keys keys;
  __shared__ Values values;
  PageTable table;
  table.entries = entries;
  table.last_page = 5;
  table.last_key = static_cast<int>(last_key);
  table.page_size.divisor = 24;
  table.page_size.shift = 36;
  table.page_size.factor = {-(-2**36 // 24)}u;
  Staged<Keys, {THREADS}> staged_keys;
  Staged<Values, {THREADS}> staged_values;
  PagedWindow<decltype(staged_keys)> window;
  window.find(table, static_cast<int>(first));
  window.load(staged_keys, table, PagedHead{{k, 24 * 128, 128}});
  window.load(staged_values, table, PagedHead{{v, 24 * 256, 256}});
  window.keep(staged_values, [=](int key) {{ return key >= lowest && key <= last_key; }});
  staged_keys.store(keys);
  staged_values.store(values);
  workgroup_barrier();
  for (int i = thread_index(); i < {WINDOW_KEYS} * 32; i += {THREADS}) {{
    reinterpret_cast<uint32_t*>(rows)[i] = keys.at<uint32_t>(i / 32, i % 32 * 4);
    reinterpret_cast<uint32_t*>(rows)[{WINDOW_KEYS} * 32 + i] = values.at<uint32_t>(i / 32, i % 32 * 4);
  }}
}}
""")


def test_window_of_a_workgroup():
    """K and V of other strides by one look at the table; what is not kept is zero, NaN or not."""
    generator = torch.Generator().manual_seed(1)
    k = torch.randn(6, 24, 64, generator=generator).to(torch.bfloat16)
    storage = torch.full((6, 24, 128), float("nan")).to(torch.bfloat16)
    storage[..., :64] = torch.randn(6, 24, 64, generator=generator).to(torch.bfloat16)
    first, last_key, lowest = 40, 90, 44
    entries = torch.randint(-2, 9, (last_key // 24 + 1,), generator=generator, dtype=torch.int32)
    rows = torch.zeros(2, WINDOW_KEYS, 64, dtype=torch.bfloat16)
    window_program("window", entries, k, storage, rows, first, last_key, lowest, waves=THREADS // 64)
    keys = torch.arange(first, first + WINDOW_KEYS)
    at = keys.clamp(max=last_key)
    pages = entries[at // 24].long()
    pages = torch.where((pages < 0) | (pages > 5), 5, pages)
    assert torch.equal(rows[0], k[pages, at % 24])
    is_kept = (keys >= lowest) & (keys <= last_key)
    assert torch.equal(rows[1], storage[pages, at % 24, :64] * is_kept[:, None])
