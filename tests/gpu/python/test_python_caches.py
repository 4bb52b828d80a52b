# SPDX-License-Identifier: Apache-2.0
"""Numbers of pages, lengths and lists on a GPU, which calls read back where STROBE_CHECK_VALUES=1 asks for it."""

import os
import subprocess
import sys

import pytest

CALL = """
import strobe, torch
q = torch.randn(2, 1, 4, 64, device="cuda").half()
k, v = (torch.randn(6, 16, 2, 64, device="cuda").half() for _ in "kv")
table = torch.tensor([[0, 1, 2], [3, 4, {page}]], dtype=torch.int32, device="cuda")
used = torch.tensor([40, {used}], dtype=torch.int32, device="cuda")
def call():
    return strobe.attention(q, k, v, page_table=table, seqused_k=used)
def append():
    k_new = v_new = torch.ones(2, 1, 2, 64, device="cuda").half()
    strobe.append(k, v, k_new, v_new, used, page_table=table)
    return (k == 1).flatten(2).all(2).sum() == {appended}
def captured():
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        call()
try:
    print(torch.isfinite(call()).all().item() if "{function}" == "call" else bool({function}()))
except Exception as error:
    print(error)
"""


def say(check, page=5, used=33, function="call", appended=2):
    environment = {**os.environ, "STROBE_CHECK_VALUES": check}
    code = CALL.format(page=page, used=used, function=function, appended=appended)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300).stdout


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"page": 6}, "page_table[1][2] is 6: the pages of k and v are numbered from 0 to 5"),
        ({"page": -1}, "page_table[1][2] is -1: the pages of k and v are numbered from 0 to 5"),
        ({"used": 49}, "seqused_k[1] is 49: it must be from 0 to the sequence's length, which is 48"),
        ({"function": "captured"}, "STROBE_CHECK_VALUES=1 reads lengths and page tables back from the GPU"),
    ],
)
def test_numbers_are_checked_where_asked_for(wrong, message):
    assert message in say("1", **wrong)
    assert say("1") == "True\n"
    assert say("0", page=6) == "True\n"  # its rows count as zeros
    assert say("1", page=6, used=32) == "True\n"  # a page that no key lies in


def test_an_append_checks_them_too():
    for check in "01":
        assert say(check, function="append") == "True\n"
    wrong = {"function": "append", "used": 48}
    assert "sequence 1 has 48 rows and appends 1: its part of the cache has 48" in say("1", **wrong)
    assert say("0", appended=1, **wrong) == "True\n"  # what has no place is not written


LISTS = """
import strobe, strobe.torch, torch
q = torch.randn(1, 3, 16, 576, device="cuda").bfloat16().requires_grad_()
rows = torch.randn(1, 50, 1, 576, device="cuda").bfloat16().requires_grad_()
lists = torch.arange(24, device="cuda", dtype=torch.int32).view(1, 3, 1, 8)
def attention():
    return strobe.torch.sparse_attention(q, rows, None, lists, head_dim_v=512)
def forward(number):
    lists.data[0, 2, 0, 5] = number
    out = torch.full((1, 3, 16, 512), 7.0, device="cuda").bfloat16()
    try:
        strobe.sparse_attention(q.detach(), rows.detach(), None, lists, head_dim_v=512, out=out)
    except ValueError as error:
        print(error, bool((out == 7).all()))
    else:
        print(bool(out.isfinite().all()))
def backward(number):
    q.grad = rows.grad = None
    lists.data[0, 2, 0, 5] = 21
    o = attention()
    lists.data[0, 2, 0, 5] = number  # which autograd does not see
    try:
        o.float().square().sum().backward()
    except ValueError as error:
        print(error, q.grad is None and rows.grad is None)
    else:
        print(bool((rows.grad[0, :24] != 0).any(-1).all() and (rows.grad[0, 24:] == 0).all()))
def append(number):
    form = strobe.RowFormat.deepseek_v32()
    cache = torch.full((2, 9, 1, form.row_bytes), 165, dtype=torch.uint8, device="cuda")
    lengths = torch.tensor([4, number], dtype=torch.int32, device="cuda")
    new = torch.randn(2, 1, 1, form.columns, device="cuda").bfloat16()
    before = cache.clone()
    try:
        form.append(cache, new, lengths)
    except ValueError as error:
        print(error, torch.equal(cache, before))
    else:
        print((cache != before).flatten(2).any(-1).nonzero().tolist())
"""


@pytest.mark.parametrize(
    ("function", "wrong", "right", "message", "said"),
    [
        ("forward", 50, 21, "sources[0].indices names 50 at place 5 of query 2, head 0 of sequence 0", "True"),
        ("backward", 50, 21, "sources[0].indices names 50 at place 5 of query 2, head 0 of sequence 0", "True"),
        ("append", 9, 8, "sequence 1 has 9 rows and appends 1: its part of the cache has 9", "[[0, 4], [1, 8]]"),
    ],
)
def test_lists_and_rows_are_checked_where_asked_for(function, wrong, right, message, said):
    """One error, with nothing written, after which the next call works."""
    environment = {**os.environ, "STROBE_CHECK_VALUES": "1"}
    code = f"{LISTS}\nfor number in ({wrong}, {right}):\n    {function}(number)"
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    first, *rest = result.stdout.splitlines()
    assert first.startswith(message), first
    assert first.endswith(" True"), first  # nothing is written
    assert rest == [said]
