"""A task's graph before and after fusion: what eager runs one kernel each, and what the candidate launches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

WIDTH, NODE, GAP = 360, 26, 12


def plan_chart(graph: Mapping[str, Any]) -> Markup:
    """Nothing yet."""
    return Markup()
