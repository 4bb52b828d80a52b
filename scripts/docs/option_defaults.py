# SPDX-License-Identifier: Apache-2.0
"""Shows options on the site as `name: type = default`, where the source has `name: Annotated[type, default]`."""

from typing import Any

from griffe import Attribute, ExprSubscript, ExprTuple, Extension


class OptionDefaults(Extension):
    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        annotation = attr.annotation
        if not isinstance(annotation, ExprSubscript) or annotation.canonical_name != "Annotated":
            return
        if attr.value is None and isinstance(annotation.slice, ExprTuple):
            attr.annotation, attr.value = annotation.slice.elements
