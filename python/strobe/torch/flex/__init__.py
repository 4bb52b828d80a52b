# SPDX-License-Identifier: Apache-2.0
"""PyTorch's FlexAttention on Strobe: its calls, with their functions as score and mask texts."""

from strobe.torch.flex.attention import BlockMask, create_block_mask, flex_attention
from strobe.torch.flex.values import TraceError

__all__ = ["BlockMask", "TraceError", "create_block_mask", "flex_attention"]
