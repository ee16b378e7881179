"""What translations look like beside references: lengths, words by frequency, telling examples."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from metabt.errors import UserError
from metabt.evaluation.runs import without_diverged
from metabt.evaluation.scores import read_aligned, read_lines
from metabt.files import write_text

LENGTH_LIMITS = (-20, -10, -5, -2, -1, 0, 1, 2, 3, 6, 11, 21)  # compare-mt's and the paper's bins
FREQUENCY_LIMITS = (1, 2, 3, 4, 5, 10, 100, 1000)  # compare-mt's
PATHOLOGICAL = 5  # words of difference, section 5.5
EXAMPLES = 10


def tokens(lines: Sequence[str]) -> list[list[str]]:
    """Words as BLEU counts them."""
    tokenise = Tokenizer13a()
    return [tokenise(line).split() for line in lines]


def _runs(files: Sequence[Path], references: Path) -> Iterator[tuple[str, str, list[str]]]:
    for method, runs in without_diverged(files).items():
        for seed, path in runs.items():
            yield method, seed, read_aligned(path, references)[0]


def _interval(limits: Sequence[int], index: int) -> str:
    """The values below the limit of this index, and not below the one before."""
    low = limits[index - 1] if index else None
    high = limits[index] - 1 if index < len(limits) else None
    if low is None:
        return f"<{limits[0]}".replace("-", "−") if limits[0] != 1 else "0"
    if high is None:
        return f"≥{low}"
    return (str(low) if low == high else f"{low} to {high}").replace("-", "−")


def length_differences(files: Sequence[Path], references: Path) -> pd.DataFrame:
    """Per cent of sentences by length of the translation less that of the reference, in words."""
    wanted = np.array([len(words) for words in tokens(read_lines(references))])
    rows = []
    for method, seed, lines in _runs(files, references):
        difference = np.array([len(words) for words in tokens(lines)]) - wanted
        bins = np.digitize(difference, LENGTH_LIMITS)
        for index in range(len(LENGTH_LIMITS) + 1):
            rows.append(
                {
                    "method": method,
                    "seed": seed,
                    "bin": index,
                    "difference": _interval(LENGTH_LIMITS, index),
                    "sentences": int((bins == index).sum()),
                    "value": 100 * float((bins == index).mean()),
                    "pathological": 100 * float((np.abs(difference) > PATHOLOGICAL).mean()),
                }
            )
    return pd.DataFrame(rows)


def count_words(corpus: Path, output: Path) -> None:
    """How often each word of a text occurs, most frequent first: WORD tab COUNT."""
    counts: Counter[str] = Counter()
    tokenise = Tokenizer13a()
    with corpus.open(encoding="utf-8") as text:
        for line in text:
            counts.update(tokenise(line).split())
    lines = [f"{word}\t{count}\n" for word, count in counts.most_common()]
    write_text(output, "".join(lines))


def read_counts(path: Path) -> dict[str, int]:
    counts = {}
    for number, line in enumerate(read_lines(path), 1):
        word, _, count = line.partition("\t")
        if not count.isdigit():
            raise UserError(f"{path}, line {number}: expected a word, a tab and a number")
        counts[word] = int(count)
    return counts


def word_f1(files: Sequence[Path], references: Path, counts: Path) -> pd.DataFrame:
    """F1 of words of the references, by how often a text has them; as compare-mt computes it."""
    from compare_mt.bucketers import FreqWordBucketer

    bucketer = FreqWordBucketer(
        freq_counts=read_counts(counts),
        bucket_cutoffs=list(FREQUENCY_LIMITS),
        case_insensitive=False,
    )
    expected = tokens(read_lines(references))
    rows = []
    for method, seed, lines in _runs(files, references):
        (statistics,), *_ = bucketer.calc_statistics(expected, [tokens(lines)])
        for index, (both, reference, output, _, _, f1) in enumerate(statistics):
            rows.append(
                {
                    "method": method,
                    "seed": seed,
                    "bin": index,
                    "frequency": _interval(FREQUENCY_LIMITS, index),
                    "reference_words": int(reference),
                    "output_words": int(output),
                    "matched_words": int(both),
                    "value": 100 * float(f1),
                }
            )
    return pd.DataFrame(rows)


def differing_examples(
    source: Path, references: Path, better: Path, worse: Path, count: int = EXAMPLES
) -> list[dict[str, Any]]:
    """Sentences in which two systems differ most, by BLEU of the sentence: half of them where the
    first is better, half where the second is."""
    sources, expected = read_aligned(source, references)
    first, second = (read_aligned(path, references)[0] for path in (better, worse))
    metric = BLEU(effective_order=True)
    scores = np.array(
        [
            [metric.sentence_score(line, [wanted]).score for line in lines]
            for lines, wanted in zip(zip(first, second, strict=True), expected, strict=True)
        ]
    )
    order = np.argsort(scores[:, 1] - scores[:, 0], kind="stable")
    half = min(count // 2, len(order) // 2)
    chosen = [*order[:half], *order[::-1][:half]]
    return [
        {
            "line": int(i) + 1,
            "source": sources[i],
            "reference": expected[i],
            "first": first[i],
            "second": second[i],
            "bleu_first": float(scores[i, 0]),
            "bleu_second": float(scores[i, 1]),
        }
        for i in chosen
        if scores[i, 0] != scores[i, 1]
    ]


def first_common_run(files: Sequence[Path], methods: Sequence[str]) -> list[Path] | None:
    """The files of the first seed with which none of these methods diverged, if there is one."""
    runs = without_diverged(files)
    missing = [method for method in methods if method not in runs]
    if missing:
        raise UserError(f"there is no run of '{missing[0]}' among: {', '.join(map(str, files))}")
    for seed in runs[methods[0]]:
        if all(seed in runs[method] for method in methods):
            return [runs[method][seed] for method in methods]
    return None
