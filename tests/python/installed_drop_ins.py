# SPDX-License-Identifier: Apache-2.0
"""The drop-ins' wheels where PyTorch is: each is imported from FOLDER and called once: installed_drop_ins.py FOLDER"""

import sys
from pathlib import Path

import flash_attn
import flash_attn_interface
import torch

folder = Path(sys.argv[1]).resolve()
torch.manual_seed(1)
q, k, v = torch.randn(3, 2, 50, 4, 32)
heads_first = (x.transpose(1, 2) for x in (q, k, v))
wanted = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)
for module in (flash_attn, flash_attn_interface):
    if folder not in Path(module.__file__).parents:
        sys.exit(f"{module.__name__} is {module.__file__}, and not from {folder}")
    torch.testing.assert_close(module.flash_attn_func(q, k, v, causal=True), wanted, rtol=0, atol=1e-5)
print(f"with PyTorch {torch.__version__}: flash_attn, flash_attn_interface")
