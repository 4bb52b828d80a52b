# SPDX-License-Identifier: Apache-2.0
"""The page of the Python reference: mkdocstrings fills it in from the docstrings of python/strobe."""

import ast

# Modules and what is public in each, in the order of the page.
MODULES = {
    "strobe": (
        "attention", "attention_backward", "explain", "info", "set_threads", "get_threads",
        "ScoreOptions", "Options", "ScoreFunction", "dropout_mask",
        "local_block_mask", "strided_block_mask", "butterfly_block_mask", "append", "AppendOptions", "merge",
        "merge_backward", "sparse_attention", "explain_sparse_attention", "SparseSource", "RowFormat", "RowPart", "mla",
        "shared_prefix_attention", "quantize", "QuantizeOptions", "Quantized", "plan_quantization", "QuantizationPlan",
        "EightBitOptions"),
    "strobe.torch": (
        "ContextParallel", "Shard", "attention", "create_block_mask", "flex_attention", "sdpa", "shard_attention",
        "sparse_attention"),
    "strobe.jax": ("attention",),
    "strobe.jax.context_parallel": ("arrange", "attention", "positions", "restore"),
    "strobe.integrations.transformers": ("register",),
    "strobe.integrations.diffusers": ("register",),
}  # fmt: skip
# What a submodule of the same name hides from mkdocstrings.
HIDDEN = {"strobe.torch": "strobe.torch.sdpa.sdpa"}


def page() -> str:
    parts = ["# `strobe` for Python", "[A tour](../python.md) shows how these are used."]
    for module, names in MODULES.items():
        options = f"    options:\n      heading_level: 3\n      members: [{', '.join(names)}]"
        parts += [f"## `{module}`", f"::: {module}\n{options}"]
        if module in HIDDEN:
            settings = ("heading_level: 3", "show_root_heading: true", "show_root_full_path: false",
                        "show_root_toc_entry: true", "members: false")  # fmt: skip
            parts.append("\n      ".join((f"::: {HIDDEN[module]}\n    options:", *settings)))
    return "\n\n".join(parts) + "\n"


def public_names(source: str) -> set[str]:
    """`__all__` of a module's source, without the version."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value)) - {"__version__"}
    return set()
