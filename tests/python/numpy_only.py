# SPDX-License-Identifier: Apache-2.0
"""The installed wheel where there is nothing but NumPy: run by an interpreter of such an environment."""

import importlib.metadata
import importlib.util
import sys

import numpy as np
import strobe

foreign = [name for name in ("torch", "jax", "transformers", "ml_dtypes") if importlib.util.find_spec(name)]
if foreign:
    sys.exit(f"this environment has more than NumPy: {', '.join(foreign)}")

q, k, v = np.random.default_rng(1).standard_normal((3, 2, 50, 4, 32), np.float32)
o, lse = strobe.attention(q, k, v, return_lse=True)
scores = np.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(32)
want_lse = np.log(np.exp(scores).sum(-1))
np.testing.assert_allclose(lse, want_lse, atol=1e-5)
np.testing.assert_allclose(o, np.einsum("bhij,bjhd->bihd", np.exp(scores - want_lse[..., None]), v), atol=1e-5)
dq, dk, dv, *_ = strobe.attention_backward(np.ones_like(o), q, k, v, o, lse)
np.testing.assert_allclose(dv.sum(axis=(1, 3)), np.full((2, 4), 50 * 32), rtol=1e-5)
print(f"strobe {strobe.__version__} with NumPy {np.__version__} alone: {strobe.info()['engines']['cpu']}")

# The program, called as the console script calls it: what is installed need not be a script of this interpreter's.
(script,) = importlib.metadata.entry_points(group="console_scripts", name="strobe")
program = script.load()
for arguments in ("--version", "verify --seqlen 64 --heads 2 --head-dim 32 --dtype float32"):
    sys.argv = ["strobe", *arguments.split()]
    if code := program():
        sys.exit(f"strobe {arguments}: exit code {code}")
