# SPDX-License-Identifier: MIT
"""GPU operators for AMD MI300X. Importing this compiles, probes and configures nothing.

AITER's other names, as attributes of `import aiter_like as aiter`, come from integrations/aiter_names.py.
"""

from typing import Any as _Any

from aiter_like.dispatch import explain as explain
from aiter_like.dispatch import is_tuned as is_tuned
from aiter_like.dispatch import use_backend as use_backend
from aiter_like.enums import ActivationType as ActivationType
from aiter_like.enums import QuantType as QuantType
from aiter_like.ops.activation.act_and_mul import *  # noqa: F403
from aiter_like.ops.activation.act_and_mul_quant import *  # noqa: F403
from aiter_like.ops.activation.fused import *  # noqa: F403
from aiter_like.ops.attention.flash_attn import *  # noqa: F403
from aiter_like.ops.attention.flash_attn_fp8 import *  # noqa: F403
from aiter_like.ops.attention.flash_attn_with_kvcache import *  # noqa: F403
from aiter_like.ops.attention.mha_batch_prefill import *  # noqa: F403
from aiter_like.ops.attention.unified_attention import *  # noqa: F403
from aiter_like.ops.attention.workspace import *  # noqa: F403
from aiter_like.ops.kv_cache.copy_blocks import *  # noqa: F403
from aiter_like.ops.kv_cache.cp_gather_indexer_k_quant_cache import *  # noqa: F403
from aiter_like.ops.kv_cache.indexer_k_quant_and_cache import *  # noqa: F403
from aiter_like.ops.kv_cache.reshape_and_cache import *  # noqa: F403
from aiter_like.ops.kv_cache.reshape_and_cache_with_block_quant import *  # noqa: F403
from aiter_like.ops.kv_cache.reshape_and_cache_with_pertoken_quant import *  # noqa: F403
from aiter_like.ops.layout.shuffle_weight import *  # noqa: F403
from aiter_like.ops.norm.dropout_layer_norm import *  # noqa: F403
from aiter_like.ops.norm.fused_qk_rmsnorm import *  # noqa: F403
from aiter_like.ops.norm.fused_rms_fp8 import *  # noqa: F403
from aiter_like.ops.norm.fused_rms_quant import *  # noqa: F403
from aiter_like.ops.norm.gated_rms_norm import *  # noqa: F403
from aiter_like.ops.norm.group_norm import *  # noqa: F403
from aiter_like.ops.norm.layer_norm import *  # noqa: F403
from aiter_like.ops.norm.norm_backward import *  # noqa: F403
from aiter_like.ops.norm.rms_norm import *  # noqa: F403
from aiter_like.ops.norm.rms_norm_quant import *  # noqa: F403
from aiter_like.ops.quant.block_quant import *  # noqa: F403
from aiter_like.ops.quant.flatten_group_quant import *  # noqa: F403
from aiter_like.ops.quant.moe_smoothquant import *  # noqa: F403
from aiter_like.ops.quant.pack_int4 import *  # noqa: F403
from aiter_like.ops.quant.quant_types import *  # noqa: F403
from aiter_like.ops.quant.row_quant import *  # noqa: F403
from aiter_like.ops.quant.tensor_quant import *  # noqa: F403
from aiter_like.ops.rope.fused_qk_norm_rope_cache import *  # noqa: F403
from aiter_like.ops.rope.fused_qk_rope_cache import *  # noqa: F403
from aiter_like.ops.rope.rope import *  # noqa: F403
from aiter_like.ops.rope.rope_2d import *  # noqa: F403
from aiter_like.ops.rope.rotary import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> _Any:
    """A name of AITER's that no family here defines: served by another, or a function that says what to use instead."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from aiter_like.integrations import aiter_names

    value = globals()[name] = aiter_names.attribute(name)
    return value


def __dir__() -> list[str]:
    from aiter_like.integrations import aiter_names

    return sorted({*globals(), *(name.partition(".")[0] for name in aiter_names.top_level())})
