"""The paper's own figures."""

from pathlib import Path
from typing import Any

import yaml

PAPER = Path(__file__).parents[2] / "resources/paper.yaml"


def paper_scores() -> dict[str, dict[str, Any]]:
    """Pair -> method -> BLEU of Table 1; None is a run that diverged."""
    return dict(yaml.safe_load(PAPER.read_text(encoding="utf-8"))["bleu"])
