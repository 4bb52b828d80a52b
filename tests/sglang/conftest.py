# SPDX-License-Identifier: Apache-2.0
"""SGLang on a CPU without its kernels, what lies beside the tests, and the float64 reference of the Python tests."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python"), str(HERE.parent / "vllm"), str(HERE / "standins")]
os.environ |= {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin take a busy machine many times as long
