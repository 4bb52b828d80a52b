# SPDX-License-Identifier: Apache-2.0
"""What is no tensor, no dense tensor or no option's value is named, in eager calls, in graphs and under transforms."""

import numpy as np
import pytest
import strobe
import strobe.torch
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

TENSOR = "it must be a torch.Tensor; strobe.attention takes tensors of other frameworks"
STRIDED = "it must be dense, torch.strided"


def tensors():
    return {name: torch.zeros(1, 4, 1, 8) for name in "qkv"}


def eager(arguments):
    return strobe.torch.attention(**arguments)


def compiled(arguments):
    torch._dynamo.reset()
    return torch.compile(lambda: strobe.torch.attention(**arguments), backend="aot_eager")()


def transformed(arguments):
    return torch.func.vmap(lambda x: strobe.torch.attention(**arguments) + x)(torch.zeros(2))


WAYS = [eager, compiled, transformed]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "sink"])
@pytest.mark.parametrize(
    ("value", "kind"),
    [(np.zeros((1, 4, 1, 8), np.float32), "ndarray"), ([1.0], "list"), (1.0, "float"), (None, "NoneType")],
)
def test_what_is_no_tensor(way, name, value, kind):
    if name in ("bias", "sink") and value is None:
        way(tensors() | {name: None})
        return
    with pytest.raises(TypeError) as error:
        way(tensors() | {name: value})
    assert str(error.value) == f"{name} is of type {kind}: {TENSOR}"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["alibi_slopes", "seqused_k", "cu_seqlens_q", "block_mask", "random_state"])
def test_options_that_are_no_tensors(way, name):
    with pytest.raises(TypeError, match=rf"^{name} is of type list: it must be a (tensor that|torch\.Tensor)"):
        way(tensors() | {"dropout": 0.5 if name == "random_state" else 0.0, name: [1, 2, 3, 4]})


@pytest.mark.parametrize("way", WAYS)
def test_arrays_of_numpy_are_lengths(way):
    wanted = eager(tensors() | {"seqused_k": torch.tensor([3], dtype=torch.int32)})
    result = way(tensors() | {"seqused_k": np.array([3], np.int32)})
    assert torch.equal(result, wanted.expand_as(result))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("option", "error", "message"),
    [
        ({"window": 3}, TypeError, "window is of type int: it must be a pair of integers (left, right)"),
        ({"window": (1, 2, 3)}, ValueError, "window has 3 values: it must be a pair of integers (left, right)"),
        ({"window": (1.5, 2)}, TypeError, "window is of type float: it must be an integer"),
        ({"causal": 1}, TypeError, 'causal is of type int: it must be True, False, "bottom_right" or "top_left"'),
        ({"causal": "x"}, ValueError, 'causal is "x": it must be True, False, "bottom_right" or "top_left"'),
        ({"scale": "1"}, TypeError, "scale is of type str: it must be a number"),
        ({"softcap": [1.0]}, TypeError, "softcap is of type list: it must be a number"),
        ({"dropout": True}, TypeError, "dropout is of type bool: it must be a number"),
    ],
)
def test_values(way, option, error, message):
    with pytest.raises(error) as caught:
        way(tensors() | option)
    assert str(caught.value) == message


@pytest.mark.parametrize("call", [strobe.attention, strobe.torch.attention])
def test_layouts(call):
    def message(**wrong):
        with pytest.raises(ValueError) as error:
            call(**tensors() | wrong)
        return str(error.value)

    x = tensors()["q"]
    assert message(q=x.to_sparse()) == f"q has the layout torch.sparse_coo: {STRIDED}"
    assert message(k=x.to_sparse()) == f"k has the layout torch.sparse_coo: {STRIDED}"
    assert message(q=x.to_mkldnn()) == f"q has the layout torch._mkldnn: {STRIDED}"
    assert message(q=torch.tensor(1.0)) == "q has rank 0: tensors of a call have rank 1 to 4"
    nested = torch.nested.nested_tensor([torch.zeros(3, 1, 8)])
    assert message(q=nested, k=nested, v=nested).startswith("q has the layout ")


def test_tensors_of_two_frameworks():
    """One framework's call may read what another holds."""
    x = tensors()
    wanted = strobe.attention(**x)
    assert torch.equal(strobe.attention(**x | {"k": x["k"].numpy()}), wanted)


def test_tensors_of_the_meta_device_have_results_there():
    """Shapes and operations are counted without memory."""
    q, k, v = (torch.zeros(2, n, 2, 8, device="meta", requires_grad=True) for n in (4, 9, 9))
    mask = torch.zeros(2, 9, dtype=torch.bool, device="meta")
    o, lse = strobe.torch.attention(q, k, v, mask=mask, score="tanh(score)", return_lse=True)
    assert (o.device.type, o.shape, lse.shape) == ("meta", (2, 4, 2, 8), (2, 2, 4))
    gradients = torch.autograd.grad(o.sum(), (q, k, v))
    assert [x.shape for x in gradients] == [x.shape for x in (q, k, v)]
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    with strobe.torch.sdpa(), FlopCounterMode(display=False) as counter:
        scaled_dot_product_attention(*heads_first, attn_mask=mask[:, None, None])
    assert counter.get_total_flops() == 2 * 2 * 2 * 2 * 4 * 9 * 8
    with pytest.raises(ValueError, match="k is on cpu and q on meta: all tensors must be on one device"):
        strobe.torch.attention(q, torch.zeros(2, 9, 2, 8), v)
