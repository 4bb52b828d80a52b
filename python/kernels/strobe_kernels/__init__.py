# SPDX-License-Identifier: Apache-2.0
"""Packs of compiled kernels, one *.archive for each GPU, which Strobe's library finds beside its own package.

Where it is not installed, these kernels are compiled at their first call.
"""
