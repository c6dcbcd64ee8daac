"""What tests share: fixtures on disk, stand-ins for other programs, and cases that several tests judge."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
SCRIPTS = ROOT / "scripts"
