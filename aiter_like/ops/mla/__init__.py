# SPDX-License-Identifier: MIT
"""Multi-head latent attention over paged latents: decoding, prefill, plans of work, sums of parts, cache writes."""
