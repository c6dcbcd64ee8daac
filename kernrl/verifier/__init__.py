"""The verifier: a candidate is traced in a sandbox and replayed in another process. `HardenedVerifier` is the entry point."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernrl.verifier.funnel import StagedEvaluator
    from kernrl.verifier.verifier import HardenedVerifier

__all__ = ["HardenedVerifier", "StagedEvaluator"]


def __getattr__(name: str) -> Any:
    """Import the entry points on first use: `kernrl.verifier.base.verdict` alone must not import torch."""
    if name == "HardenedVerifier":
        from kernrl.verifier.verifier import HardenedVerifier

        return HardenedVerifier
    if name == "StagedEvaluator":
        from kernrl.verifier.funnel import StagedEvaluator

        return StagedEvaluator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
