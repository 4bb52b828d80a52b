# SPDX-License-Identifier: Apache-2.0
"""Writing to a tensor of PyTorch's is noticed by its tape, as PyTorch's own in-place operations are."""

import flash_attn
import pytest
import strobe
import torch

LENGTHS = torch.zeros(1, dtype=torch.int32)


def rows(seed=0):
    return torch.randn(1, 6, 2, 8, generator=torch.Generator().manual_seed(seed))


def part():
    return strobe.attention(rows(), rows(1), rows(2), return_lse=True)


WRITES = {
    "out": lambda x: strobe.attention(rows(), rows(1), rows(2), out=x),
    "dq": lambda x: strobe.attention_backward(rows(3), rows(), rows(1), rows(2), *part(), dq=x),
    "dv": lambda x: strobe.attention_backward(rows(3), rows(), rows(1), rows(2), *part(), dv=x),
    "k_cache": lambda x: strobe.append(x, rows(), rows(1), rows(2), LENGTHS),
    "v_cache": lambda x: strobe.append(rows(), x, rows(1), rows(2), LENGTHS),
    "q_out": lambda x: strobe.append(
        *(rows(), rows(1), rows(2), rows(3), LENGTHS), q=rows(), q_out=x, cos=torch.ones(9, 4), sin=torch.ones(9, 4)
    ),
    "merge": lambda x: strobe.merge([part(), part()], out=x),
    "flash_attn": lambda x: flash_attn.flash_attn_with_kvcache(
        rows()[:, :1], x, rows(1), rows(2)[:, :1], rows(3)[:, :1], cache_seqlens=LENGTHS
    ),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_saved_tensor_that_is_written_to_raises(write):
    x = rows(4).requires_grad_()
    saved = x.sin()
    loss = (saved * saved).sum()
    with torch.no_grad():
        write(saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("write", [WRITES[name] for name in ("out", "dq", "dv", "q_out", "merge")])
def test_an_output_that_requires_a_gradient_is_refused(write):
    x = rows(4).requires_grad_()
    before = x.detach().clone()
    with pytest.raises(ValueError, match="requires a gradient"):
        write(x)
    assert torch.equal(x.detach(), before)


def test_inference_tensors_have_no_version():
    with torch.inference_mode():
        out = torch.empty(1, 6, 2, 8)
        strobe.attention(rows(), rows(1), rows(2), out=out)
    assert torch.equal(out, part()[0])
