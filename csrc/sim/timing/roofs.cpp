// SPDX-License-Identifier: MIT
#include "timing/roofs.h"

#include "isa/mfma_shape.h"
#include "timing/access_shape.h"

namespace sim::timing {
namespace {

// One of the densest matrix operations of each type.
constexpr std::string_view kDensest[] = {
    "v_mfma_i32_16x16x32_i8",     "v_mfma_f32_16x16x32_fp8_fp8", "v_mfma_f32_16x16x16_f16", "v_mfma_f32_16x16x16_bf16",
    "v_mfma_f32_16x16x8_xf32",    "v_mfma_f32_16x16x4_f32",      "v_mfma_f64_16x16x4_f64"};

}  // namespace

std::vector<Roof> roofs(const Parameters& p) {
  const double hertz = p.clock_mhz * 1e6, cus = p.xcds * p.cus, simds = cus * p.simds;
  std::vector<Roof> result;
  for (const std::string_view name : kDensest) {
    const MfmaShape shape = mfma_shape(name);
    const double clk = passes_of(name) * p.pass_clk;
    result.push_back({std::string(shape.type), true, static_cast<double>(shape.flops()) / clk * simds * hertz});
  }
  constexpr double kPackedFma = 4 * 64;        // two multiplications and additions of 64 lanes
  result.push_back({"vector f32", true, kPackedFma / p.valu_clk * simds * hertz});
  result.push_back({"LDS", false, kBanks * kBankBytes * cus * hertz});
  result.push_back({"L1", false, kAddressBytes * cus * hertz});
  result.push_back({"L2", false, 128 / p.channel_clk * p.l2_channels * p.xcds * hertz});
  result.push_back({"MALL", false, p.mall_tb_per_s * 1e12});
  result.push_back({"HBM", false, p.hbm_read_tb_per_s * 1e12});
  return result;
}

}  // namespace sim::timing
