# SPDX-License-Identifier: Apache-2.0
"""NumPy's arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from strobe._frameworks.base import ArrayFramework
from strobe._shapes import numpy_dtype


class NumPy(ArrayFramework):
    name = "numpy"
    module = np

    def empty(self, shape: Sequence[int], like: Any, dtype: str | None = None) -> Any:
        return np.empty(shape, dtype=like.dtype if dtype is None else numpy_dtype(dtype))

    def can_read(self, tensor: Any) -> bool:
        return True

    def lengths(self, values: np.ndarray) -> Any:
        return values
