"""Parsing in threads, with the garbage collector running Python code in the middle of it."""

import ast
import contextlib
import gc
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import kernrl
from kernrl.syntax import parse_python

SOURCE = Path(__file__).read_text() * 3


@pytest.fixture
def restless_collector() -> Iterator[None]:
    """Every few allocations a collection, and every collection gives the other threads a turn."""
    before, interval = gc.get_threshold(), sys.getswitchinterval()

    def let_others_run(phase: str, info: dict[str, int]) -> None:
        time.sleep(0)

    gc.callbacks.append(let_others_run)
    gc.set_threshold(20, 1000, 1000)
    sys.setswitchinterval(1e-6)
    yield
    gc.callbacks.remove(let_others_run)
    gc.set_threshold(*before)
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("restless_collector")
def test_threads_parse_at_once() -> None:
    with ThreadPoolExecutor(4) as threads:
        trees = list(threads.map(parse_python, [SOURCE] * 40))
    assert all(len(tree.body) == len(trees[0].body) for tree in trees)


@pytest.mark.usefixtures("restless_collector")
def test_a_text_is_parsed_again_where_a_library_parses_meanwhile() -> None:
    done = threading.Event()

    def library() -> None:
        while not done.is_set():
            with contextlib.suppress(SystemError):
                ast.parse(SOURCE)

    with ThreadPoolExecutor(5) as threads:
        others = [threads.submit(library) for _ in range(2)]
        try:
            trees = list(threads.map(parse_python, [SOURCE] * 30))
        finally:
            done.set()
    assert all(future.exception() is None for future in others)
    assert all(len(tree.body) == len(trees[0].body) for tree in trees)


def test_all_of_kernrl_parses_in_one_place() -> None:
    package = Path(kernrl.__file__).parent
    parsing = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if "ast.parse(" in path.read_text()}
    assert parsing == {"syntax.py"}
