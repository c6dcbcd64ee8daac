"""The verifier: a candidate is traced in a sandbox and replayed where it cannot reach. `HardenedVerifier` is the only door."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernrl.verifier.funnel import StagedEvaluator
    from kernrl.verifier.verifier import HardenedVerifier

__all__ = ["HardenedVerifier", "StagedEvaluator"]


def __getattr__(name: str) -> Any:
    """Load the door when it is asked for: `kernrl.verifier.base.verdict` alone must not cost an import of torch."""
    if name == "HardenedVerifier":
        from kernrl.verifier.verifier import HardenedVerifier

        return HardenedVerifier
    if name == "StagedEvaluator":
        from kernrl.verifier.funnel import StagedEvaluator

        return StagedEvaluator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
