# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch that are not dense are refused by their layout's name."""

import numpy as np
import pytest
import strobe
import torch


@pytest.mark.parametrize(
    ("convert", "layout"),
    [(torch.Tensor.to_sparse, "torch.sparse_coo"), (torch.Tensor.to_mkldnn, "torch._mkldnn")],
)
def test_layouts_that_are_not_dense(convert, layout):
    x = torch.ones(1, 2, 2, 4)
    if layout == "torch._mkldnn" and not torch.backends.mkldnn.is_available():
        pytest.skip("this build of PyTorch has no mkldnn")
    out = np.zeros((1, 2, 2, 4), np.float32)
    with pytest.raises(ValueError) as caught:
        strobe.attention(x, convert(x), x, out=out)
    assert str(caught.value) == f"k has the layout {layout}: it must be dense, torch.strided"
    assert not out.any()
