"""BLEU and chrF, by sacreBLEU, with the signatures that say what was measured."""

from pathlib import Path
from typing import Any

from sacrebleu.metrics import BLEU, CHRF

from metabt.errors import UserError


def read_lines(path: Path) -> list[str]:
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not valid UTF-8 ({error.reason})") from error
    return text.removesuffix("\n").split("\n") if text else []


def read_aligned(hypotheses: Path, references: Path) -> tuple[list[str], list[str]]:
    """Two files that belong together, line by line."""
    system, reference = read_lines(hypotheses), read_lines(references)
    if len(system) != len(reference):
        raise UserError(
            f"{hypotheses} has {len(system):,} lines, but {references} has {len(reference):,}"
        )
    if not system:
        raise UserError(f"{hypotheses} and {references}: there are no lines to score")
    return system, reference


def score_files(hypotheses: Path, references: Path) -> dict[str, Any]:
    """Scores of one file of translations against one of references, line by line."""
    system, reference = read_aligned(hypotheses, references)
    bleu, lowercase, chrf = BLEU(), BLEU(lowercase=True), CHRF()
    metrics = {"bleu": bleu, "bleu_lowercase": lowercase, "chrf": chrf}
    result: dict[str, Any] = {"sentences": len(system)}
    for name, metric in metrics.items():
        score = metric.corpus_score(system, [reference])
        result[name] = {"score": round(score.score, 4), "signature": str(metric.get_signature())}
    return result
