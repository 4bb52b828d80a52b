# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-2's calls, computed by Strobe. Unsupported arguments raise NotImplementedError, which names them."""

import strobe

from flash_attn.flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

# The version whose calls these are, which users compare with, and whose they really are.
__version__ = f"2.8.4+strobe.{strobe.__version__}"

__all__ = [
    "__version__",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
