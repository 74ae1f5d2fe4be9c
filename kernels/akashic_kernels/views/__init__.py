"""Views: which tokens of which pages a row sees, and where they stand; and the checks that all ops share.

Pages: `k_pages`, `v_pages` [pages, kv_heads, page_size, head_dim], contiguous. A key is stored turned by its *slot in
the page* alone. A view is four int32 (page, offset, length, base): the tokens in the slots offset .. offset + length - 1,
of which the one in slot j stands at position base + j. As R(m)q . R(base + j)k = R(m - base)q . R(j)k, a query at
position m is turned once a view, by m - base, and moving text changes nothing but `base`.
A batch's views are `views` int32 [total, 4], row b's being view_start[b] .. view_start[b + 1] - 1.

Shapes and types are checked on every call. Values live on the device and are checked by `check_view_values` alone,
which waits for it: call it where views are made, not in a decode step.
"""

from __future__ import annotations

from akashic_kernels.views.validation import (
    PageShape,
    check_pages,
    check_query,
    check_tensor,
    check_view_values,
    check_views,
)

__all__ = ["PageShape", "check_pages", "check_query", "check_tensor", "check_view_values", "check_views"]
