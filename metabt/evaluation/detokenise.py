"""From words split at spaces (Moses, as TED comes) to text as people write it, which BLEU wants."""

from pathlib import Path

from sacremoses import MosesDetokenizer

from metabt.evaluation.scores import read_lines
from metabt.files import write_text


def detokenise(text: Path, language: str, output: Path) -> None:
    join = MosesDetokenizer(lang=language)
    lines = [join.detokenize(line.split()) for line in read_lines(text)]
    write_text(output, "".join(f"{line}\n" for line in lines))
