"""What the kernel of `resident` knows of a row before it reads it: its number, its inputs, and where its pieces are."""

# Triton's language is not Python's: pyright cannot follow it.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false, reportIndexIssue=false, reportAssignmentType=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

barrier = getattr(gl, "barrier", None) or gl.thread_barrier  # as triton 3.6 calls it


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def _deal_rows(order_ptr, mask_ptr, n_rows, first, step, num_warps: gl.constexpr):
    """Write a new order of the rows, those that count first, the others last. Programs take every `step`-th row of it, so
    each has as many rows that count as any other, wherever those are. A program writes only the places that it will read:
    `first` and every `step`-th after it. How many rows count."""
    WIDE: gl.constexpr = 256 * num_warps
    layout: gl.constexpr = gl.BlockedLayout([8], [32], [num_warps], [0])
    share = 1.0 / step
    before = 0  # how many rows count, of those seen so far
    for start in range(0, n_rows, WIDE):
        row = start + gl.arange(0, WIDE, layout=layout)
        counts = (gl.load(mask_ptr + row, mask=row < n_rows, other=0) != 0).to(gl.int32)
        found = before + gl.associative_scan(counts, 0, _add)
        place = gl.where(counts != 0, found - 1, n_rows - 1 - row + found)  # the others from the end on
        turn = ((place - first).to(gl.float32) * share + 0.5).to(gl.int32)  # cheaper than a remainder, and exact where it is 0
        gl.store(order_ptr + place, row, mask=(row < n_rows) & (place - first == turn * step))
        before += gl.sum(counts, 0)
    barrier()
    return before


@gluon.jit
def _row_at(place, n_active, n_rows, order_ptr):
    """The row at a place of the order; past the last that counts, a row that does not exist."""
    row = place
    if order_ptr is not None:
        row = gl.load(order_ptr + place, mask=place < n_active, other=n_rows)
    return row


@gluon.jit
def _row_inputs(row, n_rows, vocab, ids_ptr):
    """(action, whether it is in the vocabulary, whether there is such a row)."""
    active = row < n_rows
    a = gl.load(ids_ptr + row, mask=active, other=0)
    valid = (a >= 0) & (a < vocab)
    return gl.where(valid, a, 0).to(gl.int32), valid, active


@gluon.jit
def _frame(row, vocab, first, ALIGNED: gl.constexpr, LINE: gl.constexpr):
    """(base, head): where the line in which a piece starts begins, and how far into it the piece does."""
    start = row.to(gl.int64) * vocab + first
    base = start // LINE * LINE
    head = 0
    if not ALIGNED:
        head = (start - base).to(gl.int32)
    return base, head


@gluon.jit
def _copied_end(base, end, n_rows, vocab, ALIGNED: gl.constexpr, GROUP: gl.constexpr):
    """Where the copies of a frame end that starts at `base`: with the last group that the piece touches, or the tensor's last
    whole one."""
    groups = _group_end(end, ALIGNED, GROUP) // GROUP
    if not ALIGNED:
        groups = gl.minimum(groups.to(gl.int64), (n_rows.to(gl.int64) * vocab - base) // GROUP).to(gl.int32)
    return groups * GROUP


@gluon.jit
def _group_start(at, ALIGNED: gl.constexpr, GROUP: gl.constexpr):
    """Where the group that holds `at` starts; an aligned piece starts and ends with whole ones."""
    if not ALIGNED:
        at = at // GROUP * GROUP
    return at


@gluon.jit
def _group_end(at, ALIGNED: gl.constexpr, GROUP: gl.constexpr):
    """`at` if a group starts there, else where the next one does."""
    if not ALIGNED:
        at = (at + GROUP - 1) // GROUP * GROUP
    return at
