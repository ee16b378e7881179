"""compare-mt's page about two systems."""

import base64
import os
import re
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
    """Write OUTPUT/index.html and its pictures, and OUTPUT.html with all of it inside.

    compare-mt splits words at spaces only, so it gets them split as BLEU splits them. Without
    systems the page says why."""
    output.parent.mkdir(parents=True, exist_ok=True)
    if not systems:
        page = "<p>With every seed one of the two methods diverged.</p>\n"
        write_text(output / "index.html", page)
        write_text(output.with_name(output.name + ".html"), page)
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
        for made in (work / "page").glob("*.html"):  # which do not say how they are encoded
            text = made.read_text(encoding="utf-8")
            write_text(made, text.replace("<head>", '<head>\n<meta charset="utf-8">', 1))
        if output.exists():
            shutil.rmtree(output)
        (work / "page").rename(output)
    write_text(output.with_name(output.name + ".html"), _self_contained(output))


def _self_contained(folder: Path) -> str:
    """All pages as one, with pictures and style inside; those of examples come after the first."""

    def read(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8")

    def picture(match: re.Match[str]) -> str:
        data = base64.b64encode((folder / match[1]).read_bytes()).decode("ascii")
        return f'src="data:image/png;base64,{data}"'

    text = read("index.html")
    for name in dict.fromkeys(re.findall(r'href="([^":/#]+)\.html#', text)):
        body = read(f"{name}.html").split("<body>", 1)[1].split("</body>", 1)[0]
        body = re.sub(r'<a name="([^"]+)"\s*/>', rf'<a name="{name}-\1"></a>', body)
        text = text.replace(f'href="{name}.html#', f'href="#{name}-')
        text = text.replace("</body>", f"{body}</body>", 1)
    style = f"<style>{read('compare_mt.css')}</style>"
    text = text.replace('<link rel="stylesheet" href="compare_mt.css">', style, 1)
    return re.sub(r'src="([^":/]+\.png)"', picture, text)


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
