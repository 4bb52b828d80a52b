# SPDX-License-Identifier: Apache-2.0
"""Scores that are not normalized: gradients in every interface, and what belongs to a softmax is an error."""

import expression_reference
import jax
import numpy as np
import pytest
import strobe
import strobe.jax
import strobe.torch
import torch
from expression_reference import copies, draw
from strobe._option_list import reject_texts
from strobe.torch import ops

B, SQ, SK, H, D = 2, 21, 33, 4, 16
Q, K, V, D_OUT = draw(1, B, SQ, H, D), draw(2, B, SK, 2, D), draw(3, B, SK, 2, D), draw(4, B, SQ, H, D)
SHIFT = draw(5, H)
SCORE, MASK = "sigmoid(score + shift[head])", "k <= q + 5"
OPTIONS = {"normalize": "none", "score": SCORE, "mask": MASK}


def attend(q, k, v, shift, **options):
    return strobe.torch.attention(q, k, v, captures={"shift": shift}, **OPTIONS, **options)


def exact():
    """out and the gradients of q, k, v and shift."""
    q, k, v, shift = given = copies(Q, K, V, SHIFT)
    out, _ = expression_reference.attention(
        q, k, v,
        lambda s, b, h, i, j: (s + shift[h]).sigmoid(),
        lambda b, h, i, j: j <= i + 5,
        normalize="none",
    )  # fmt: skip
    return out.detach(), torch.autograd.grad((out * D_OUT).sum(), given)


WANTED, WANTED_GRADIENTS = exact()


def check(out, gradients):
    for actual, wanted in zip((out, *gradients), (WANTED, *WANTED_GRADIENTS), strict=True):
        torch.testing.assert_close(actual.double(), wanted, rtol=1e-4, atol=2e-5)


def check_torch(call):
    given = copies(Q, K, V, SHIFT, dtype=torch.float32)
    out = call(*given)
    check(out, torch.autograd.grad((out * D_OUT).sum(), given))


def test_gradients_of_eager_calls():
    check_torch(attend)


def test_gradients_of_compiled_calls():
    torch._dynamo.reset()
    check_torch(torch.compile(attend, fullgraph=True, backend="aot_eager"))


def test_functional_gradients_and_vmap():
    gradients = torch.func.grad(lambda *x: (attend(*x) * D_OUT).sum(), argnums=(0, 1, 2, 3))(Q, K, V, SHIFT)
    check(attend(Q, K, V, SHIFT), gradients)
    shifts = torch.stack([SHIFT, -SHIFT])
    batched = torch.vmap(lambda shift: attend(Q, K, V, shift))(shifts)
    for sample, shift in zip(batched, shifts, strict=True):
        assert torch.equal(sample, attend(Q, K, V, shift))


def test_opcheck():
    q, k, v, shift = copies(Q, K, V, SHIFT, dtype=torch.float32)
    options = {"normalize": "none", "score": SCORE, "mask_text": MASK, "captures": {"shift": shift}}
    arguments = ops.operator_arguments(q, k, v, options)
    torch.library.opcheck(torch.ops.strobe.attention.default, arguments)
    plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
    o, lse, _ = torch.ops.strobe.attention(*plain)
    assert (lse == -torch.inf).all()
    backward = (torch.ones_like(o), None, *plain[:3], o, lse, *plain[3:-1], False, False, 1)
    torch.library.opcheck(torch.ops.strobe.attention_backward.default, backward)


def test_gradients_of_numpy():
    captures = {"shift": SHIFT.numpy()}
    q, k, v, d_out = (x.numpy() for x in (Q, K, V, D_OUT))
    out = strobe.attention(q, k, v, captures=captures, **OPTIONS)
    gradients = strobe.attention_backward(
        d_out, q, k, v, None, None, captures=captures, return_d_captures=True, **OPTIONS
    )
    check(torch.from_numpy(out), map(torch.from_numpy, (*gradients[:3], gradients[3]["shift"])))


@pytest.mark.parametrize("transform", [jax.jit, lambda function: function], ids=["jit", "eager"])
def test_gradients_of_jax(transform):
    def attend(q, k, v, shift):
        return strobe.jax.attention(q, k, v, captures={"shift": shift}, **OPTIONS)

    def loss(*x):
        return (attend(*x) * D_OUT.numpy()).sum()

    given = [x.numpy() for x in (Q, K, V, SHIFT)]
    gradients = transform(jax.grad(loss, argnums=(0, 1, 2, 3)))(*given)
    out, *gradients = (torch.from_numpy(np.array(x)) for x in (transform(attend)(*given), *gradients))
    check(out, gradients)


def test_linear_attention_without_a_text():
    out = strobe.attention(Q.numpy(), K.numpy(), V.numpy(), normalize="none", scale=1.0, window=(4, 4))
    wanted, _ = expression_reference.attention(
        *(x.double() for x in (Q, K, V)),
        mask=lambda b, h, i, j: (j - (i + SK - SQ)).abs() <= 4,
        scale=1.0,
        normalize="none",
    )
    torch.testing.assert_close(torch.from_numpy(out).double(), wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["return_lse", "return_max_logits"])
def test_results_of_a_softmax_are_an_error(name):
    with pytest.raises(ValueError, match=f'{name} is given with normalize="none": it belongs to the softmax'):
        strobe.torch.attention(Q, K, V, normalize="none", **{name: True})
    with pytest.raises(ValueError, match=f'{name} is given with normalize="none": it belongs to the softmax'):
        strobe.jax.attention(*(x.numpy() for x in (Q, K, V)), normalize="none", **{name: True})
    with pytest.raises(ValueError, match="is given with normalize none: it belongs to the softmax"):
        strobe.attention(Q, K, V, normalize="none", **{name: True})


def test_what_it_cannot_be():
    for call in (strobe.attention, strobe.torch.attention):
        with pytest.raises(ValueError, match="sink is given with normalize none: it belongs to the softmax"):
            call(Q, K, V, normalize="none", sink=SHIFT)
        with pytest.raises(ValueError, match='normalize is "l1": it must be "softmax" or "none"'):
            call(Q, K, V, normalize="l1")
    with pytest.raises(ValueError, match='normalize is "l1": it must be "softmax" or "none"'):
        ops.operator_arguments(Q, K, V, {"normalize": "l1"})
    with pytest.raises(NotImplementedError, match="no engine has the JVP of scores that are not normalized"):
        torch.func.jvp(lambda q: strobe.torch.attention(q, K, V, normalize="none"), (Q,), (Q,))


def test_parts_on_several_devices_have_no_lse_to_merge_by():
    with pytest.raises(NotImplementedError, match='normalize is "none": ContextParallel merges parts by their lse'):
        reject_texts("ContextParallel", {"normalize": "none"})
    reject_texts("ContextParallel", {"normalize": "softmax", "score": None})


def test_the_plan_says_so():
    assert "normalize     none" in strobe.explain(Q, K, V, normalize="none", score="sigmoid(score)")
    assert "normalize     none" in strobe.explain(Q, K, V, normalize="none", backward=True)
