# SPDX-License-Identifier: Apache-2.0
"""What comes in pairs, and lengths that are no int32, are errors of flash_attn_with_kvcache."""

import flash_attn
import flash_attn_interface
import pytest
import torch

MODULES = [flash_attn, flash_attn_interface]


def arguments():
    q = torch.ones(1, 1, 2, 16)
    cache = torch.zeros(1, 8, 2, 16)
    return q, cache, cache.clone()


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("given", ["k", "v"])
def test_new_rows_come_in_pairs(module, given):
    q, k_cache, v_cache = arguments()
    with pytest.raises(ValueError, match=f"{given} is given without"):
        module.flash_attn_with_kvcache(q, k_cache, v_cache, **{given: q}, cache_seqlens=4)
    assert not k_cache.any() and not v_cache.any()


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("given", ["rotary_cos", "rotary_sin"])
def test_tables_come_in_pairs(module, given):
    q, k_cache, v_cache = arguments()
    with pytest.raises(ValueError, match=f"{given} is given without"):
        module.flash_attn_with_kvcache(q, k_cache, v_cache, k=q, v=q, cache_seqlens=4, **{given: torch.ones(8, 8)})
    assert not k_cache.any() and not v_cache.any()


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("lengths", [torch.tensor([5.9]), torch.tensor([2**32 + 5])])
def test_lengths_are_int32(module, lengths):
    with pytest.raises(ValueError, match="it must be int32"):
        module.flash_attn_with_kvcache(*arguments(), cache_seqlens=lengths)
