# SPDX-License-Identifier: Apache-2.0
"""Numbers of pages and lengths on a GPU, which calls read back where STROBE_CHECK_VALUES=1 asks for it."""

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
