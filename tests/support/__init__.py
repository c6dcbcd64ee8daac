"""What tests share: fixtures on disk, stand-ins for other programs, and cases that several tests judge."""

import os
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
SCRIPTS = ROOT / "scripts"
EXHAUSTIVE = bool(os.environ.get("KERNRL_EXHAUSTIVE"))
"""Whether every case runs, as at night, where by day some stand for others like them."""
