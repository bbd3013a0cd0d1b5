// SPDX-License-Identifier: MIT
// Every number of the cycle model, with its source: "published" is a public measurement of an MI300X or of the same CU,
// "ISA" a document of AMD or LLVM, "assumed" neither. Cycles are those of the shader clock; what is fixed in seconds
// (bandwidths beyond the L2) is converted at `clock_mhz`. No number belongs to a kernel.
#pragma once
#include "types.h"

namespace sim::timing {

inline constexpr const char* kModelVersion = "4";

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
  u32 lds_conflict_clk = 67;                   // that four and more lanes at a bank add; published: 120 and 119 (pyhip)

  // ---- vector memory
  u32 vmem_queue = 24;                         // instructions of a CU that wait; published: 24 in a row stall (pyhip)
  u32 l1_latency_clk = 116;                    // published: 116 (SC25, mt4g)
  u32 l1_bytes = 32768, l1_ways = 64;          // white paper; the ways are assumed
  u32 bypass_clk = 16;                         // sc1 and nt pass the L1; published: 224, a hit of the L2 208 (MrRoy09)
  u32 lds_dma_clk = 11;                        // address unit per dword to LDS; published: 11 (pyhip)
  u32 store_data_bytes = 64;                   // per clk from registers; assumed

  // ---- L2 of an XCD
  u32 l2_latency_clk = 208;                    // published: 207-210 (SC25)
  u32 l2_bytes = 4 << 20, l2_ways = 16, l2_channels = 16;      // white paper
  double l1_fill_bytes = 64;                   // per clk and CU, of what the L2 holds; white paper
  double l1_far_fill_bytes = 32;               // … of what comes from beyond; published: dwordx4 32 clk (pyhip)
  // A channel's time for 128 bytes. The white paper has 1; fitted to 19.5 TB/s of distinct blocks and, of a line that
  // the channel has given just before, to 28 TB/s of a buffer that all CUs read together (SC25).
  double channel_clk = 1.76, channel_again_clk = 1.2;
  double store_clk = 4.74;                     // … for a store's line; published: 7.26 TB/s (mt4g)
  u32 atomic_latency_clk = 382;                // published (fleet-mi300x)
  double atomic_clk = 14;                      // a channel, per segment; published: a quarter of the store rate (pyhip)
  u32 collision_clk = 4;                       // … per further lane of one address; assumed

  // ---- beyond the L2
  u32 mall_latency_clk = 445;                  // published: 445 at 8-64 MB (SC25)
  u32 hbm_latency_clk = 776;                   // fitted to 861 at 550 MB (SC25), of which translation is the rest
  // Translation of addresses, by CU. The reach and what a miss costs are fitted to a chase of 92 MB, 476 clk (SC25);
  // they give 504 at 161 MB and 869 at 1.9 GB as well. Pages are taken to have been used before.
  u64 page_bytes = 2 << 20;
  u32 translations = 32, translation_clk = 96;
  u32 memory_channels = 16;                    // for each XCD; white paper: 128 in all
  u32 write_back_clk = 760;                    // buffer_wbl2; fitted to a flag's round trip in an XCD, 1.20 us (fleet)
  // What a load waits, on average, at a load of half of what memory gives; it grows as in a queue. Fitted to 1.97 TB/s
  // of 8 bytes a lane (SC25).
  double contention_clk = 50;
  double turnaround_clk = 2.0;                 // a channel between reads and writes; fitted to scale, 3.97 (SC25)
  u64 mall_bytes = u64{256} << 20;             // white paper; XCDs that run share it
  double mall_tb_per_s = 5.0;                  // published: 5.0 at 20-400 MB (SC25)
  double mall_write_tb_per_s = 5.61;           // published: 5.1 TiB/s (mt4g)
  double hbm_read_tb_per_s = 4.2, hbm_write_tb_per_s = 4.7;  // published: read, init (SC25)

  // ---- scalar memory, instructions
  u32 scalar_latency_clk = 48;                 // published: 48 (mt4g)
  u32 scalar_bytes = 16384, scalar_ways = 4;   // published: ~16 KB (mt4g); the ways are assumed
  u32 fetch_bytes = 65536, fetch_ways = 8;     // instruction cache of two CUs, white paper; the ways are assumed
  u32 fetch_clk = 16;                          // between the lines of 128 bytes that a miss asks for in a row; assumed
  u32 fetch_ahead = 3;                         // lines after the missing one; assumed. Code is taken to be in the L2

  // ---- dispatch
  u32 dispatch_clk = 130;                      // from a workgroup's end to the next one; fitted to reads, 1 of 8 waves

  // Bytes per clk that one XCD gets of a bandwidth of the chip.
  double xcd_bytes_per_clk(double tb_per_s) const { return tb_per_s * 1e6 / clock_mhz / xcds; }
};

}  // namespace sim::timing
