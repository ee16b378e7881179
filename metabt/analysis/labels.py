"""How methods are called in tables and figures; one that is not here is called by its name."""

_LABELS = {
    "nobt": "No BT",
    "mle": "MLE",
    "mle-beam": "MLE, beam",
    "mle-noisy-beam": "MLE, noisy beam",
    "dualnmt": "DualNMT",
    "metabt": "MetaBT",
    "unmt": "UNMT",
}


def label(method: str) -> str:
    return _LABELS.get(method, method)
