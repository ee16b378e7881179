"""compare-mt's page about two systems."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from metabt.analysis.labels import label
from metabt.analysis.translations import FREQUENCY_LIMITS, LENGTH_LIMITS, tokens
from metabt.errors import UserError
from metabt.evaluation.scores import read_lines
from metabt.files import write_text


def compare_page(
    output: Path,
    source: Path,
    references: Path,
    systems: Sequence[tuple[str, Path]],
    counts: Path,
) -> None:
    """Write OUTPUT/index.html and its pictures. compare-mt splits words at spaces only, so it gets
    them split as BLEU splits them. Without systems the page says why."""
    output.parent.mkdir(parents=True, exist_ok=True)
    if not systems:
        write_text(output / "index.html", "<p>With every seed one of the two methods diverged.</p>")
        return
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as folder:
        work = Path(folder)
        texts = {"source": source, "references": references}
        texts |= {f"system{i}": path for i, (_, path) in enumerate(systems)}
        for name, path in texts.items():
            lines = [" ".join(words) for words in tokens(read_lines(path))]
            write_text(work / name, "".join(f"{line}\n" for line in lines))
        shutil.copyfile(counts, work / "counts")
        _run(work, [label(method) for method, _ in systems])
        for picture in (work / "page").glob("*.pdf"):  # the page shows the PNGs
            picture.unlink()
        if output.exists():
            shutil.rmtree(output)
        (work / "page").rename(output)


def _run(work: Path, names: Sequence[str]) -> None:
    frequencies = ":".join(map(str, FREQUENCY_LIMITS))
    lengths = ":".join(map(str, LENGTH_LIMITS))
    command = [
        *(sys.executable, "-m", "compare_mt.compare_mt_main"),
        "references",
        *(f"system{i}" for i in range(len(names))),
        *("--src_file", "source"),
        *("--sys_names", *names),
        *("--output_directory", "page"),
        *("--report_title", f"compare-mt: {' and '.join(names)}"),
        # Its bootstrap draws half of the test set: significance is tested elsewhere.
        *("--compare_scores", "score_type=bleu,bootstrap=0", "score_type=length,bootstrap=0"),
        "--compare_word_accuracies",
        f"bucket_type=freq,freq_count_file=counts,bucket_cutoffs={frequencies}",
        "--compare_sentence_buckets",
        "bucket_type=length,statistic_type=score,score_measure=bleu",
        f"bucket_type=lengthdiff,bucket_cutoffs={lengths}",
        *("--compare_ngrams", "compare_type=match"),
        *("--compare_sentence_examples", "score_type=sentbleu"),
    ]
    environment = {**os.environ, "MPLBACKEND": "Agg", "PYTHONUTF8": "1"}
    done = subprocess.run(
        command, cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    print(done.stdout, end="")
    if done.returncode or not (work / "page" / "index.html").exists():
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(done.stderr, end="", file=sys.stderr)
        raise UserError(f"compare-mt failed: {last}")
