# SPDX-License-Identifier: Apache-2.0
"""What JAX offers to its own calls alone. Where a version of JAX lacks it, only what is said here is lost."""

import contextlib

from jax.extend.core import Primitive


def needs_devices(primitive: Primitive) -> None:
    """Has lowering tell the primitive the devices of its program. Else programs of several devices do not compile."""
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import dispatch

        dispatch.prim_requires_devices_during_lowering.add(primitive)


def export_as_stable(target: str) -> None:
    """Has jax.export write calls of the target, whose later versions run what earlier ones have exported.

    Else exporting takes ``disabled_checks=[jax.export.DisabledSafetyCheck.custom_call(target)]``.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src.export import _export

        _export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE.add(target)
