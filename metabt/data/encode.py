"""From clean text to shards: draw the sample that subwords are learnt from, then encode all."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metabt.data.batches import permute
from metabt.data.readers import Lines, read
from metabt.data.shards import ShardWriter
from metabt.data.sources import File, Source
from metabt.data.subwords import encode_blocks
from metabt.errors import UserError
from metabt.progress import Progress

BLOCK_BYTES = (
    256 << 10
)  # a few thousand lines: small enough to share evenly, large enough to be rare


def _text(paths: Sequence[Path]) -> Source:
    return Source(", ".join(map(str, paths)), "text", tuple(File(str(path)) for path in paths))


def sample_lines(paths: Sequence[Path], count: int, seed: int) -> list[str]:
    """At most `count` lines of some clean files, drawn without replacement, in their order.

    Each different line once: the sides of several corpora overlap, and SentencePiece's time is
    quadratic in the length of what is repeated.
    """
    total = sum(len(block[0]) for path in paths for block in read(_text([path])))
    if total <= count:
        chosen = np.arange(total)
    else:
        chosen = np.sort(permute(np.arange(count), total, seed))
    return list(dict.fromkeys(_lines_at(paths, chosen)))


def _lines_at(paths: Sequence[Path], chosen: np.ndarray) -> Iterator[str]:
    """The lines at some positions, ascending, of files that are read one after the other."""
    position = 0
    for path in paths:
        for (lines,) in read(_text([path])):
            end = position + len(lines)
            here = chosen[np.searchsorted(chosen, position) : np.searchsorted(chosen, end)]
            for index in here - position:
                yield lines.line(int(index)).decode("utf-8")
            position = end


def _joined(lines: Lines) -> bytes:
    """Clean lines as they stand in the file, newlines between them."""
    return lines.text[lines.starts[0] : lines.ends[-1]].tobytes()


def encode_corpus(
    vocabulary: Path,
    texts: Sequence[Path],
    languages: Sequence[str],
    output: Path,
    limit: int | None,
    threads: int,
) -> dict[str, Any]:
    """Encode the sides of a clean corpus into a shard; without a `limit`, all of it.

    With one, sentences with more subwords, or with none, are left out.
    """
    digest = hashlib.sha256(vocabulary.read_bytes()).hexdigest()
    blocks = (tuple(map(_joined, block)) for block in read(_text(texts), BLOCK_BYTES))
    with (
        ShardWriter(output, languages, digest, limit) as writer,
        Progress(f"encode {output.stem}", None, "sentences") as bar,
    ):
        for block in encode_blocks(vocabulary, blocks, languages, threads):
            writer.add(block)
            bar.add(len(block[0][1]))
        if not writer.sentences:
            raise UserError(f"{output}: no sentence of {texts[0]} has 1 to {limit} subwords")
        writer.finish()
    return {
        "read": writer.sentences + writer.too_long + writer.no_subwords,
        "dropped": {"no_subwords": writer.no_subwords, "too_long": writer.too_long},
        "kept": writer.sentences,
        "tokens": dict(zip(languages, writer.tokens, strict=True)),
    }
