# SPDX-License-Identifier: Apache-2.0
"""Gives an SVG drawing dark colours for readers who prefer them, on the documentation site as on GitHub.

The drawing keeps its own background, so that it is legible where a page's colours are not those of the reader's system.
"""

DARK = {  # a light drawing's colour: its dark one. What is not listed is legible on both backgrounds
    "#ffffff": "#161b22",
    "#000000": "#e6edf3",
    "#222222": "#e6edf3",
    "#24292f": "#e6edf3",
    "#332288": "#b9a7ff",
    "#444444": "#c9d1d9",
    "#57606a": "#9da7b3",
    "#777777": "#9da7b3",
    "#999999": "#6e7681",
    "#b0b0b0": "#6e7681",
    "#cccccc": "#484f58",
    "#e6e6e6": "#30363d",
    "#eaeef2": "#30363d",
    "#0072b2": "#58a6e8",
}


def rules():
    """CSS that is stronger than the colours of attributes and of style attributes."""
    yield f"text:not([fill]) {{ fill: {DARK['#000000']} }}"
    for light, dark in DARK.items():
        for paint in ("fill", "stroke"):
            yield f'[{paint}="{light}" i], [style*="{paint}: {light}" i] {{ {paint}: {dark} !important }}'


def with_dark_mode(svg):
    """The drawing with a style element before its first shape."""
    style = "\n".join(rules())
    head, end, shapes = svg.partition("<g id=" if "<g id=" in svg else "<rect")
    return f"{head}<style>@media (prefers-color-scheme: dark) {{\n{style}\n}}</style>\n{end}{shapes}"
