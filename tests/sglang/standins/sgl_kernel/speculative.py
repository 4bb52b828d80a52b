# SPDX-License-Identifier: Apache-2.0
"""See the package."""

from sgl_kernel import absent as __getattr__  # noqa: F401
