"""Train language models to write fused GPU kernels, with rewards that can be trusted."""

from typing import Any

__version__ = "0.1.0"

_OFFERED = {"optimize": "kernrl.optimization.api", "explain": "kernrl.optimization.api"}
"""Name → the module it comes from. Named as text, and imported on first use: `import kernrl` loads no torch."""


def __getattr__(name: str) -> Any:
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_OFFERED[name]), name)
