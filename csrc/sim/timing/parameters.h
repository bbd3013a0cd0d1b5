// SPDX-License-Identifier: MIT
// Every number of the cycle model, with its source: "published" is a public measurement of an MI300X or of the same CU,
// "ISA" a document of AMD or LLVM, "assumed" neither. Cycles are those of the shader clock; what is fixed in seconds
// (bandwidths beyond the L2) is converted at `clock_mhz`. No number belongs to a kernel.
#pragma once
#include "types.h"

namespace sim::timing {

inline constexpr const char* kModelVersion = "3";

struct Parameters {
  // ---- the chip (AMD, CDNA3 white paper)
  u32 xcds = 8, cus = 38, simds = 4;
  double clock_mhz = 2100;                     // peak engine clock

  // ---- issue
  u32 issue_clk = 4;                           // one wave's instructions; published: plain VALU 4.01 (pyhip, MI308X)
  u32 straddle_clk = 1;                        // 8 bytes across a multiple of 8 bytes; published: 5.01 (pyhip)
  u32 branch_taken_clk = 16;                   // assumed: the instruction buffer is filled anew
  u32 internal_clk = 4;                        // s_waitcnt, s_setprio, …; assumed
  u32 barrier_clk = 20;                        // from the last wave's arrival; assumed

  // ---- vector arithmetic
  u32 valu_clk = 4;                            // published: 4.01, packed f32 too (pyhip)
  u32 trans_clk = 16;                          // published: exp, rcp 16.0 (pyhip)
  u32 wide_multiply_clk = 16;                  // v_mul_lo_u32, v_mul_hi, v_mad_u64_u32; assumed: quarter rate
  u32 pass_clk = 4;                            // a matrix operation's pass (ISA; published: 16.0 for four passes, SC25)
  u32 mfma_result_passes = 3;                  // from the last pass to a reader, ISA: wait states in passes
  u32 packed_after_mfma_clk = 8;               // packed f32 waits for the matrix pipe and this; published: +12, then +4

  // ---- LDS
  u32 lds_latency_clk = 52;                    // ds_read_b32; published: 52 (pyhip), 51 (mt4g)
  u32 lds_return_bytes = 64;                   // per clk to one SIMD; published: ds_read_b128 16 clk from one wave
  u32 lds_queue = 16;                          // instructions of a CU that wait for the banks; assumed

  // ---- vector memory
  u32 vmem_queue = 24;                         // instructions of a CU that wait; published: 24 in a row stall (pyhip)
  u32 l1_latency_clk = 116;                    // published: 116 (SC25, mt4g)
  u32 l1_bytes = 32768, l1_ways = 64;          // white paper; the ways are assumed
  u32 lds_dma_clk = 11;                        // address unit per dword to LDS; published: 11 (pyhip)
  u32 store_data_bytes = 64;                   // per clk from registers; assumed

  // ---- L2 of an XCD
  u32 l2_latency_clk = 208;                    // published: 207-210 (SC25)
  u32 l2_bytes = 4 << 20, l2_ways = 16, l2_channels = 16;      // white paper
  double l1_fill_bytes = 64;                   // per clk and CU; white paper
  // A channel's time for 128 bytes. The white paper has 1; fitted to 19.5 TB/s of distinct blocks and, of a line that
  // the channel has given just before, to 28 TB/s of a buffer that all CUs read together (SC25).
  double channel_clk = 1.76, channel_again_clk = 1.1;
  u32 atomic_latency_clk = 382;                // published (fleet-mi300x)
  double atomic_clk = 4;                       // a channel, per segment; published: a quarter of the store rate (pyhip)
  u32 collision_clk = 4;                       // … per further lane of one address; assumed

  // ---- beyond the L2
  u32 mall_latency_clk = 445;                  // published: 445 at 8-64 MB (SC25)
  u32 hbm_latency_clk = 861;                   // published: 861 (SC25)
  u32 memory_channels = 16;                    // an XCD's share of 128 (white paper)
  double turnaround_clk = 1;                   // a channel between reads and writes; fitted to scale, 3.97 (SC25)
  u64 mall_bytes = u64{256} << 20;             // white paper; an XCD is taken to have its share
  double mall_tb_per_s = 5.0;                  // published: 5.0 at 20-400 MB (SC25)
  double hbm_read_tb_per_s = 4.14, hbm_write_tb_per_s = 4.59;  // published: read, init (SC25)

  // ---- scalar memory, instructions
  u32 scalar_latency_clk = 48;                 // published: 48 (mt4g)
  u32 scalar_bytes = 16384, scalar_ways = 4;   // published: ~16 KB (mt4g); the ways are assumed
  u32 fetch_bytes = 65536, fetch_ways = 8;     // instruction cache of two CUs, white paper; the ways are assumed
  u32 fetch_clk = 16;                          // between the lines of 128 bytes that a miss asks for in a row; assumed
  u32 fetch_ahead = 3;                         // lines after the missing one; assumed. Code is taken to be in the L2

  // ---- dispatch
  u32 dispatch_clk = 140;                      // from a workgroup's end to the next one; fitted to reads, 1 of 8 waves

  // Bytes per clk that one XCD gets of a bandwidth of the chip.
  double xcd_bytes_per_clk(double tb_per_s) const { return tb_per_s * 1e6 / clock_mhz / xcds; }
};

}  // namespace sim::timing
