"""What the kernel of `resident` knows of a row before it reads it: its inputs, and where its pieces lie in memory."""

# Triton's language is not Python's: pyright cannot follow it.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false, reportIndexIssue=false, reportAssignmentType=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def _row_inputs(row, n_rows, vocab, ids_ptr, mask_ptr):
    """(action, whether it is in the vocabulary, whether the row counts); no row counts past the last one."""
    active = row < n_rows
    a = gl.load(ids_ptr + row, mask=active, other=0)
    valid = (a >= 0) & (a < vocab)
    if mask_ptr is not None:
        active = active & (gl.load(mask_ptr + row, mask=active, other=0) != 0)
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
