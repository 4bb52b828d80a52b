# SPDX-License-Identifier: Apache-2.0
"""Strobe behind the interfaces of other libraries."""
