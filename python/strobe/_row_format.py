# SPDX-License-Identifier: Apache-2.0
"""What a row of a cache holds, as a value."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from strobe import _core
from strobe._options import Tensor


@dataclass(frozen=True, slots=True)
class RowPart:
    """Columns of one element in a row. Offsets are in bytes from the start of the row.

    ``element`` is float32, bfloat16, float16, float8_e4m3, int8, int4 or float4_e2m1; the last two lie two to a byte,
    the even column in its low half. ``scale`` says what the scale of each group of ``scale_columns`` columns is stored
    as: float32, bfloat16, float8_e8m0 (a power of two in a byte), float32_power_of_two, float8_e4m3, or None for no
    scales, which int8 and 4 bits need.
    """

    element: str
    columns: int
    offset: int = 0
    scale: str | None = None
    scale_columns: int = 0
    scale_offset: int = 0


@dataclass(frozen=True, slots=True)
class RowFormat:
    """The bytes of a row of a cache: its parts one after another are its columns.

    V is the first ``head_dim_v`` columns; 0: V has rows of its own. The last ``tail_bytes`` of each row lie behind the
    rows of its page. Rows' addresses are multiples of ``alignment``. Raises ValueError for fields that contradict one
    another: parts and scales that overlap or leave the row, more than four parts or 576 columns.

    Example:

        four_bits = strobe.RowFormat(
            parts=(
                strobe.RowPart("float4_e2m1", 448, 0, scale="float8_e8m0", scale_columns=32, scale_offset=224),
                strobe.RowPart("bfloat16", 64, 238),
            ),
            row_bytes=368, head_dim_v=512, alignment=16,
        )
    """

    parts: tuple[RowPart, ...]
    row_bytes: int
    head_dim_v: int = 0
    tail_bytes: int = 0
    alignment: int = 1

    def __post_init__(self) -> None:
        _core.describe_row_format(self)

    def __str__(self) -> str:
        return _core.describe_row_format(self)

    @property
    def columns(self) -> int:
        """Columns of all parts."""
        return sum(part.columns for part in self.parts)

    @classmethod
    def mla_bfloat16(cls) -> "RowFormat":
        """576 columns bfloat16, of which V is the first 512: multi-head latent attention."""
        return cls._of(_core.ready_row_format("mla_bfloat16"))

    @classmethod
    def deepseek_v32(cls) -> "RowFormat":
        """DeepSeek-V3.2's 656 bytes: 512 columns float8_e4m3 with four float32 scales, 64 columns bfloat16."""
        return cls._of(_core.ready_row_format("deepseek_v32"))

    @classmethod
    def deepseek_v4(cls) -> "RowFormat":
        """DeepSeek-V4's 584 bytes: 448 columns float8_e4m3, 64 columns bfloat16, e8m0 scales behind the page's rows."""
        return cls._of(_core.ready_row_format("deepseek_v4"))

    @classmethod
    def deepseek_v41(cls) -> "RowFormat":
        """DeepSeek-V4.1's 528 bytes: 512 columns float8_e4m3, e8m0 scales of 32 columns behind the page's rows."""
        return cls._of(_core.ready_row_format("deepseek_v41"))

    @classmethod
    def deepseek_v41_four_bit(cls) -> "RowFormat":
        """DeepSeek-V4.1's 288 bytes: 512 columns float4_e2m1, e4m3 scales of 16 columns behind the page's rows."""
        return cls._of(_core.ready_row_format("deepseek_v41_four_bit"))

    @classmethod
    def eight_bit(cls, element: str, columns: int) -> "RowFormat":
        """``columns`` float8_e4m3 or int8 with a float32 scale of the row: K or V."""
        return cls._of(_core.eight_bit_row_format(element, columns))

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> "RowFormat":
        parts = tuple(RowPart(**part) for part in fields.pop("parts"))
        return cls(parts=parts, **fields)

    def encode(self, rows: Tensor, cache: Tensor, *, threads: int = 0) -> None:
        """Writes rows [num_pages, page_size, heads_kv, columns] to a cache, uint8 [.., row_bytes] in this format.

        rows are float32, float16 or bfloat16. A group's scale is its largest magnitude over its element's largest;
        elements are rounded to nearest even and limited. A group with NaN or an infinity is read as NaN.
        """
        _core.encode_rows(rows, cache, self, threads=threads)

    def decode(self, cache: Tensor, rows: Tensor, *, threads: int = 0) -> None:
        """Writes what a cache in this format holds to rows [num_pages, page_size, heads_kv, columns].

        Element times scale in float32, rounded to the dtype of rows.
        """
        _core.decode_rows(cache, rows, self, threads=threads)

    def append(
        self,
        cache: Tensor,
        rows: Tensor,
        cache_seqlens: Tensor,
        *,
        cu_seqlens_new: Tensor | None = None,
        page_table: Tensor | None = None,
        cache_batch_idx: Tensor | None = None,
        threads: int = 0,
    ) -> None:
        """Writes new rows to a cache behind the rows that its sequences have, as ``encode`` does.

        The cache is [batch_cache, seqlen, heads_kv, row_bytes], of which sequence b is entry b or
        ``cache_batch_idx[b]``; or, with ``page_table``, pages. ``cache_seqlens`` [batch] counts the rows before the
        append and is not changed. rows are [batch, seqlen_new, heads_kv, columns], or packed [total_new, ..] with
        ``cu_seqlens_new``. ValueError, with nothing written, for rows or pages that the cache does not have and two
        sequences that would write to one row; on a GPU rows that have no place are not written.
        """
        _core.append_rows(
            cache, rows, cache_seqlens, cu_seqlens_new, page_table, cache_batch_idx, self, threads=threads
        )


def to_text(row_format: RowFormat | None) -> str:
    """A format as an argument of an operator; none is empty."""
    if row_format is None:
        return ""
    parts = [
        f"{part.element},{part.columns},{part.offset},{part.scale},{part.scale_columns},{part.scale_offset}"
        for part in row_format.parts
    ]
    sizes = f"{row_format.row_bytes},{row_format.head_dim_v},{row_format.tail_bytes},{row_format.alignment}"
    return ";".join([sizes, *parts])


@cache
def from_text(text: str) -> RowFormat | None:
    """The reverse."""
    if not text:
        return None
    sizes, *parts = (field.split(",") for field in text.split(";"))
    return RowFormat(
        tuple(
            RowPart(element, int(columns), int(offset), None if scale == "None" else scale, int(group), int(at))
            for element, columns, offset, scale, group, at in parts
        ),
        *map(int, sizes),
    )
