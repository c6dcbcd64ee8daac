"""The verifier: a candidate is traced in a sandbox and replayed where it cannot reach. `HardenedVerifier` is the only door."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernrl.verifier.evaluator import StagedEvaluator
    from kernrl.verifier.hardened import HardenedVerifier

__all__ = ["HardenedVerifier", "StagedEvaluator"]


def __getattr__(name: str) -> Any:
    """Load the door when it is asked for: `kernrl.verifier.verdict` alone must not cost an import of torch."""
    if name == "HardenedVerifier":
        from kernrl.verifier.hardened import HardenedVerifier

        return HardenedVerifier
    if name == "StagedEvaluator":
        from kernrl.verifier.evaluator import StagedEvaluator

        return StagedEvaluator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
