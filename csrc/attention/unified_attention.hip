// SPDX-License-Identifier: MIT
// Attention over pages for gfx942 where sequences have many queries, in two pipelines.
//
//   out = Σ p v / Σ p,  p = 2^(score − max),  score = log2 e · (softcap(softmax_scale · q kᵀ) − alibi), masked
//
// With MASK, that of flash_attn_fwd.hip, whose two groups of waves take turns (unified_attention_ping_pong.h); else
// that of flash_attn_fwd_tile.hip, composed from the tile library (unified_attention_tiles.h).
#if defined(MASK)
#include "unified_attention_ping_pong.h"
#else
#include "unified_attention_tiles.h"
#endif

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(unified_attention, aiter_like::unified_attention);
#endif
