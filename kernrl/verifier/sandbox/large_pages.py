"""What a zygote and its children share, in large pages, so that a fork costs little and its child soon runs."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

_LARGE = 2 << 20
_SHARED_CODE = ("libtriton", "libtorch_python", "libpython", "python3")
"""How the files begin whose code children run most."""

_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = _libc.mremap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def use_large_pages() -> None:
    """Gather what children share into pages of 2 MiB, where the kernel can: memory, of which a fork copies an entry a page
    (Linux 6.1), and the code they run most, which no fork copies: each child would meet it anew, in thousands of faults."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, access, _, _, inode, *path = line.split(maxsplit=5)
        start, end = (int(address, 16) for address in span.split("-"))
        if inode == "0" and access.startswith("rw"):
            for at in range(-(-start // _LARGE) * _LARGE, end - _LARGE + 1, _LARGE):
                _libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(_LARGE), _MADV_COLLAPSE)
        elif path and Path(path[0]).name.startswith(_SHARED_CODE) and access in ("r-xp", "r--p") and end - start >= _LARGE:
            _copy_in_place(start, end - start, mmap.PROT_READ | (mmap.PROT_EXEC if "x" in access else 0))


def _copy_in_place(start: int, size: int, protection: int) -> None:
    """Put a copy, in large pages of no file, where a mapping of a file is. The mapping stays where there is no memory, and
    where the kernel runs only code that comes from files. No other thread may be running."""
    room = _libc.mmap(None, size + _LARGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if room == ctypes.c_void_p(-1).value:
        return
    copy = room + (start - room) % _LARGE  # as far from a large page's edge as its place is, so that whole pages move
    _libc.madvise(ctypes.c_void_p(room), ctypes.c_size_t(size + _LARGE), _MADV_HUGEPAGE)
    ctypes.memmove(copy, start, size)
    if _libc.mprotect(ctypes.c_void_p(copy), ctypes.c_size_t(size), protection) == 0:
        _libc.mremap(*map(ctypes.c_void_p, (copy, size, size, _MREMAP_MAYMOVE | _MREMAP_FIXED, start)))
    _libc.munmap(ctypes.c_void_p(room), ctypes.c_size_t(size + _LARGE))
