"""Large pages for what a fork server shares with its children, so that forking is cheap and a child starts fast."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

_LARGE = 2 << 20
_SHARED_CODE = ("libtriton", "libtorch_python", "libpython", "python3")
"""File names, by their beginnings, of the code that children run most."""

_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = _libc.mremap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def use_large_pages() -> None:
    """Move what children share into pages of 2 MiB, where the kernel can (Linux 6.1).

    Memory: a fork copies one page table entry a page. Code that children run most: a fork does not copy its entries, so each
    child would take thousands of page faults on it.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, access, _, _, inode, *path = line.split(maxsplit=5)
        start, end = (int(address, 16) for address in span.split("-"))
        if inode == "0" and access.startswith("rw"):
            for at in range(-(-start // _LARGE) * _LARGE, end - _LARGE + 1, _LARGE):
                _libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(_LARGE), _MADV_COLLAPSE)
        elif path and Path(path[0]).name.startswith(_SHARED_CODE) and access in ("r-xp", "r--p") and end - start >= _LARGE:
            _copy_in_place(start, end - start, mmap.PROT_READ | (mmap.PROT_EXEC if "x" in access else 0))


def _copy_in_place(start: int, size: int, protection: int) -> None:
    """Replace the mapping of a file by a copy in anonymous large pages. No other thread may be running.

    The mapping stays when there is no memory for the copy, or when the kernel only runs code from files.
    """
    room = _libc.mmap(None, size + _LARGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if room == ctypes.c_void_p(-1).value:
        return
    copy = room + (start - room) % _LARGE  # at the same offset within a large page, so that whole pages move
    _libc.madvise(ctypes.c_void_p(room), ctypes.c_size_t(size + _LARGE), _MADV_HUGEPAGE)
    ctypes.memmove(copy, start, size)
    if _libc.mprotect(ctypes.c_void_p(copy), ctypes.c_size_t(size), protection) == 0:
        _libc.mremap(*map(ctypes.c_void_p, (copy, size, size, _MREMAP_MAYMOVE | _MREMAP_FIXED, start)))
    _libc.munmap(ctypes.c_void_p(room), ctypes.c_size_t(size + _LARGE))
