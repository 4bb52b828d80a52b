# SPDX-License-Identifier: Apache-2.0
"""Numbers of pages and lengths on a GPU, which calls read back where STROBE_CHECK_VALUES=1 asks for it."""

import os
import subprocess
import sys

CALLS = """
import strobe, torch
q = torch.randn(2, 1, 4, 64, device="cuda").half()
k, v = (torch.randn(6, 16, 2, 64, device="cuda").half() for _ in "kv")
def call(page=5, used=33):
    table = torch.tensor([[0, 1, 2], [3, 4, page]], dtype=torch.int32, device="cuda")
    lengths = torch.tensor([40, used], dtype=torch.int32, device="cuda")
    return lambda: strobe.attention(q, k, v, page_table=table, seqused_k=lengths)
def captured(call):
    def capture():
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            return call()
    return capture
for function in (call(), call(page=6), call(page=-1), call(used=49), call(page=6, used=32), captured(call())):
    torch.cuda.synchronize()
    try:
        result = function()
        torch.cuda.synchronize()
        print("well")
    except Exception as error:
        print(error)
"""


def answers(checks):
    environment = {**os.environ, "STROBE_CHECK_VALUES": checks}
    run = subprocess.run([sys.executable, "-c", CALLS], env=environment, capture_output=True, text=True)
    return run.stdout.splitlines()


def test_numbers_are_checked_where_asked_for():
    well, behind, before, too_long, unused, captured = answers("1")
    assert well == unused == "well"  # no key lies in the page that does not exist
    assert behind == "page_table[1][2] is 6: the pages of k and v are numbered from 0 to 5"
    assert before == "page_table[1][2] is -1: the pages of k and v are numbered from 0 to 5"
    assert too_long == "seqused_k[1] is 49: it must be from 0 to the sequence's length, which is 48"
    assert captured.startswith("STROBE_CHECK_VALUES=1 reads lengths and page tables back from the GPU")


def test_pages_that_do_not_exist_count_as_zeros_elsewhere():
    well, behind, before, _, unused, captured = answers("0")
    assert well == behind == before == unused == captured == "well"
