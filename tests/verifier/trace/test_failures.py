"""Candidates that fail by themselves: each way has a status, and a reason that says what is wrong."""
# ruff: noqa: E501  (programs are quoted as models write them)

import pytest
from support.front import HEAD, MODEL, cases, module, trace

from kernrl.verifier.base.verdict import Rejection, Status

ERRORS = {
    "exception": ("raise ValueError('no')", Status.TRACE_ERROR, "ValueError: no"),
    "shapes": ("return launch(x @ x)", Status.TRACE_ERROR, "[8, 32]"),
    "host tensor in a launch": (
        "y = torch.empty(8, 32); double[(4,)](x, y, 256, BLOCK=64); return y",
        Status.TRACE_ERROR, "device=x.device",
    ),
    "host and device mixed": ("return launch(x + torch.ones(32))", Status.TRACE_ERROR, "device=x.device"),
    "a host tensor with indices on the GPU": (
        "return launch(torch.ones(8)[torch.zeros_like(x[0]).long()])", Status.TRACE_ERROR, "device=x.device",
    ),
    "host numbers put into rows": (
        "y = x.clone(); y[torch.arange(4)] = torch.ones(4, 32); return launch(y)", Status.TRACE_ERROR, "device=x.device",
    ),
    "host output": ("launch(x); return torch.zeros(3)", Status.TRACE_ERROR, "device=x.device"),
    "no output": ("launch(x)", Status.TRACE_ERROR, "NoneType"),
    "another library": ("import no_such_library", Status.TRACE_ERROR, "No module named 'no_such_library', and candidates have"),
    "missing argument": ("y = torch.empty_like(x); double[(4,)](x, y, BLOCK=64); return y", Status.TRACE_ERROR, "missing"),
    "not a power of two": (
        "y = torch.empty_like(x); double[(4,)](x, y, 256, BLOCK=65); return y",
        Status.COMPILE_ERROR, "power of 2",
    ),
    "memory": ("b = bytearray(1 << 40); return launch(x)", Status.TRACE_ERROR, "MemoryError"),
    "exit": ("import sys; sys.exit(0)", Status.TRACE_ERROR, "ended its process"),
    "segfault": ("import ctypes; ctypes.pythonapi.Py_DecRef(ctypes.c_void_p(8))", Status.CRASH, "signal 11"),
    "hang": ("while True: pass", Status.TIMEOUT, "2 s"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "status", "says"), cases(ERRORS, slow={"hang"}))
def test_failures_have_a_status_and_a_reason(body, status, says):
    rejection = trace(module(body), timeout_s=2.0)
    assert isinstance(rejection, Rejection)
    assert (rejection.status, says in rejection.reason) == (status, True), rejection


def test_compile_errors_quote_the_line():
    rejection = trace(HEAD.replace("* 2.0", "* tl.cosine(3)") + MODEL)
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.COMPILE_ERROR
    assert "cosine" in rejection.reason


def test_a_compile_error_in_a_helper_says_what_is_wrong():
    helpers = "@triton.jit\ndef inner(v): return v * FACTOR\n@triton.jit\ndef outer(v): return inner(v)\nFACTOR = 2.0\n"
    rejection = trace(HEAD.replace("@triton.jit", helpers + "@triton.jit", 1).replace("* 2.0", "* outer(1.0)") + MODEL)
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.COMPILE_ERROR
    assert "Cannot access global variable FACTOR" in rejection.reason


FAILS = {
    "a cause of itself": ("e, f = ValueError('why'), ValueError(); e.__cause__, f.__cause__ = f, e\nraise e", "ValueError: why"),
    "no text": (
        "class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd", "Odd, which does not say what is wrong [line",
    ),
    "four axes": ("double[(4, 1, 1, 1)](x, x, 256, BLOCK=64)", "the grid has 4 numbers"),
    "a negative grid": ("double[(-4,)](x, x, 256, BLOCK=64)", "a negative number of programs"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "says"), cases(FAILS))
def test_what_fails_says_why(body, says):
    rejection = trace(module(body))
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.TRACE_ERROR
    assert says in rejection.reason
