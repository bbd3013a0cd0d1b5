# SPDX-License-Identifier: MIT
"""Published measurements that have no case, and why; cases that the model misses, and why. Printed with the page."""

from __future__ import annotations

# Cases that the model is known to miss: the beginning of a case's name → why.
UNEXPLAINED = {
    "latency of L2 and MALL, 4.6":
        "published for a footprint a tenth larger than the L2, where the share of hits depends on how lines are "
        "placed in the sets, which is not public",
    "latency of MALL, 92":
        "the model gives the one XCD that it replays an eighth of the MALL; on the chip a single wave has all of it",
    "latency of MALL, 161": "as for 92 MB",
    "latency of HBM, the first": "the translation of addresses is not modelled",
    "what an L1 miss adds": "SC25 has 92 for the same (208 less 116), to which the model was fitted",
    "latency of a load with": "sc1 and nt are not modelled: such a load passes the L1 on the hardware",
    "latency of a load after a store":
        "published is the L2's latency: a store leaves no line in the L1. The model's stores do not touch what is "
        "there",
    "MFMA fp8, 304": "published at a clock that is not stated, modelled at 2,100 MHz",
    "LDS latency, b32, all lanes on 4":
        "published is the same latency as for 64 lanes on one bank, though the banks are busy for a quarter of the "
        "time",
    "LDS latency, b32, all lanes on one": "the cycles that a return takes beside the banks are not published",
    "buffer_load_dwordx4": "the model has the white paper's 64 bytes per clk into the L1; published is half of it",
    "loads in a row":
        "in the model the queue moves on when the address unit has taken a load, which is as fast as loads issue; on "
        "the hardware something holds each of them longer",
    "one buffer of 2 MB": "how the benchmark spreads the buffer over the waves of a CU is not published",
    "one buffer of 8 MB":
        "all CUs are modelled in step, so that a line comes from the MALL once for all CUs of an XCD; on the "
        "hardware they drift apart and fetch it again",
    "one buffer of 13 MB": "as for 8 MB",
    "512 KB of its own": "the share of the MALL that one XCD has is assumed to be an eighth",
    "stores to 96 KB": "a channel of the L2 is modelled to take stores as fast as it gives lines",
    "stores to 512 KB": "stores beyond the L2 are modelled at the rate of HBM, whether the MALL holds them or not",
    "read, 1 loads": "latency grows under load on the hardware before the channels are full",
    "read, 2 loads": "as with one load in flight",
    "read, 4 loads": "as with one load in flight",
    "read, 8 bytes a lane, 2": "as with one load in flight of 256 lanes",
    "read, 8 bytes a lane, 4": "as with one load in flight of 256 lanes",
    "triad": "modelled by bytes; what more streams cost (DRAM pages) is not modelled",
    "five points": "modelled by bytes; what loads across two lines cost beside them is not known",
    "read, rows of 16": "bandwidth is modelled by bytes; rows that are apart cost the hardware DRAM pages too",
    "read, rows of 4": "as rows of 16 lanes",
    "read, lanes as MFMA":
        "published for an MI308X, whose 80 CUs have as much memory bandwidth as 304 here: the rate of a CU's address "
        "unit may limit those, and cannot limit these. The size of a row is not published either",
    "pk_add_bf16":
        "an atomic takes four times as long as a store in a channel of the modelled L2, but memory is slower than "
        "both, and no atomic is sent there",
}

# Rows of public measurements without a figure of the model: (what, published, source) → why.
ELSEWHERE = {
    ("latency of L2", "287 clk", "mt4g"):
        "a second figure for \"latency of L2, 2 MB\"; SC25's has raw logs",
    ("latency of HBM", "mean 900, p50 876, p95 1,115 clk", "mt4g"):
        "a second figure for \"latency of HBM, 550 MB\"; the model has one latency, no distribution",
    ("L1 hit", "112 to 127 clk", "MrRoy09"):
        "a second figure for \"latency of L1\"",
    ("latency of LDS", "51 clk", "mt4g"):
        "a second figure for \"LDS latency, b32\"",
    ("an sc1 load beside another XCD's dirty line", "it is not seen", "MrRoy09"):
        "no time; one XCD stands for all, so lines of two are not modelled. `--hardware` asks it: \"coherence\"",
    ("L1, other footprints", "38.7 to 39.4 TB/s", "SC25"):
        "the range that \"L1, 16 KB a CU\" lies in",
    ("L2, read", "14.4 TiB/s", "mt4g"):
        "a second figure for \"96 KB of its own for each CU\"",
    ("MALL, read", "5.4 TiB/s", "mt4g"):
        "a second figure for \"512 KB of its own for each CU\"",
    ("HBM, read and write", "3.7 and 4.1 TiB/s", "mt4g"):
        "second figures for \"read\" and \"init, 8 bytes a lane\"",
    ("buffer_load_dwordx4, latency", "500 to 800 clk", "pyhip"):
        "a range over unknown shares of L2, MALL and HBM; the chases have each level",
    ("LDS, one dword between lanes", "358 µs", "pyhip"):
        "as much as with no dword between lanes (359 µs): the benchmark's loop, not the LDS",
    ("a second wave's MFMA is delayed, there is no queue", "-", "aster"):
        "no figure; \"MFMA f16 16x16x16, 8 waves of a CU\" shows it",
    ("atomic in L2, contended", "1,937 clk", "rocprof"):
        "which lanes and CUs contend is not published; ladders without a published figure are below",
    ("flag, round trip to another XCD", "1.44 µs (p95 1.56)", "fleet"):
        "two workgroups that wait for one another: the model replays what was recorded, and what a wave waits for in "
        "memory is not in it, nor is the way between XCDs. `--hardware` measures it",
    ("flag, round trip in an XCD", "1.20 µs", "fleet"):
        "as to another XCD",
    ("flag, round trip under 1.6 TB/s of load", "6.8 µs (p95 8.7)", "fleet"):
        "as to another XCD",
}
