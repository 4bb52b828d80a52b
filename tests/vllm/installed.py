# SPDX-License-Identifier: Apache-2.0
"""What the vLLM that is installed has, or what stands for it. To be imported after conftest.py."""

import pytest
from vllm.v1.attention import backend

HAS_MLA = hasattr(backend, "max_decode_query_len")
"""Whether strobe-vllm serves models with MLA: from vLLM 0.31 on."""
needs_mla = pytest.mark.skipif(not HAS_MLA, reason="models with MLA need vLLM 0.31 or later")
