"""Text to subword ids and back: SentencePiece or subword-nmt BPE, joint or one model per language.

Each language is encoded by its own model (the same one, where it is joint) into one id space, the
union of all models' pieces by surface form. A piece that begins a word carries the mark "▁" in
both kinds of model, so any sequence of ids decodes without a word about its language.
"""

import contextlib
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np
import sentencepiece
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from metabt.data.parallel import ordered_map
from metabt.errors import UserError
from metabt.files import atomic_write, read_json, write_json

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
MAX_VOCABULARY = 65_535  # ids are stored as uint16
WORD_BEGIN = "\u2581"
UNKNOWN_SURFACE = " \u2047 "  # what SentencePiece itself shows for an unknown piece

VERSION = 1
TRAINING_THREADS = 16  # SentencePiece's sums depend on it: a constant, whatever the machine
CACHED_WORDS = 1 << 18

Encoded = tuple[np.ndarray, np.ndarray]  # uint16 ids of all lines, int64 length of each line


# --- training -----------------------------------------------------------------------------------


def train_sentencepiece(
    lines: Iterable[str], model: Path, *, size: int, model_type: str, character_coverage: float
) -> None:
    """Train on `lines`, a sample that the caller has drawn: the same lines give the same bytes."""
    failure: list[Exception] = []

    def guarded() -> Iterator[str]:
        # SentencePiece turns an exception of its input into a RuntimeError without a type.
        try:
            yield from lines
        except Exception as error:
            failure.append(error)
            raise

    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=guarded(),
            model_writer=written,
            vocab_size=size,
            model_type=model_type,
            character_coverage=character_coverage,
            num_threads=TRAINING_THREADS,
            shuffle_input_sentence=False,
            max_sentence_length=1 << 30,  # the default drops lines over 4192 bytes without a word
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            minloglevel=2,
        )
    except (RuntimeError, ValueError) as error:
        if failure:
            raise failure[0] from None
        raise UserError(_training_error(model, size, str(error))) from error
    with atomic_write(model) as handle:
        handle.write(written.getvalue())


def _training_error(model: Path, size: int, message: str) -> str:
    if "sentences_.empty()" in message:
        return f"{model}: the training text is empty"
    if limit := re.search(r"too high.*<= (\d+)", message):
        return (
            f"{model}: subwords.size is {size}, but the training text supports "
            f"at most {limit[1]} pieces"
        )
    if needed := re.search(r"smaller than required_chars.*?\d+ vs (\d+)", message):
        return (
            f"{model}: subwords.size is {size}, but the characters of the training text alone "
            f"need {needed[1]} pieces; raise it or lower subwords.character_coverage"
        )
    return f"{model}: SentencePiece cannot train with subwords.size {size}: {message}"


def train_bpe(lines: Iterable[str], model: Path, *, size: int) -> None:
    """Learn up to `size` merges, fewer where no pair of symbols is left that occurs twice.

    The word-begin mark is one more character of each word. So every piece is a character or a
    merge, and all text of known characters can be written in them; with subword-nmt's own "@@"
    each symbol would need an initial and an inner form, seen or not.
    """
    characters = {WORD_BEGIN}

    def marked() -> Iterator[str]:
        for line in lines:
            words = _words(line)
            characters.update(*words)
            yield " ".join(WORD_BEGIN + word for word in words)

    codes = io.StringIO()
    text = marked()
    first = next((line for line in text if line), None)
    if first is None:
        raise UserError(f"{model}: the training text is empty")
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
        learn_bpe(chain([first], text), codes, size)
    merges = codes.getvalue().rstrip("\n").split("\n")[1:]
    if not merges:
        raise UserError(f"{model}: subwords.size is {size}, but no pair of symbols can be merged")
    described = {"version": VERSION, "characters": sorted(characters), "merges": merges}
    with atomic_write(model) as handle:
        handle.write(json.dumps(described, indent=1, ensure_ascii=False).encode() + b"\n")


def _words(line: str) -> list[str]:
    return line.replace(WORD_BEGIN, " ").split()


# --- the two kinds of model ---------------------------------------------------------------------
# Both have `pieces`, of which the first means "unknown", and give ids into that list.


class _SentencePieceModel:
    kind = "sentencepiece"

    def __init__(self, content: bytes) -> None:
        self._model = sentencepiece.SentencePieceProcessor(model_proto=content)
        self.pieces = [self._model.id_to_piece(i) for i in range(self._model.get_piece_size())]

    def encode(self, lines: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        # Lists of Python integers, and yet faster than an array for each line.
        ids = self._model.encode(lines, out_type=int, num_threads=1)
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum())), lengths

    def normalise(self, line: str) -> str:
        return _surface(self._model.normalize(line))


class _BPEModel:
    kind = "bpe"

    def __init__(self, content: bytes) -> None:
        described = json.loads(content)
        merges = described["merges"]
        # A symbol at the end of a word is another one than within it, its surface is the same.
        surfaces = (merge.replace(" ", "").removesuffix("</w>") for merge in merges)
        self.pieces = list(dict.fromkeys(chain([""], described["characters"], surfaces)))
        self._ids = {piece: i for i, piece in enumerate(self.pieces)}
        codes = io.StringIO("#version: 0.2\n" + "\n".join(merges))
        self._bpe = BPE(codes, separator="")
        self._cache: dict[str, list[int]] = {}

    def encode(self, lines: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        ids: list[int] = []
        lengths = np.empty(len(lines), np.int64)
        for i, line in enumerate(lines):
            before = len(ids)
            for word in _words(line.decode()):
                ids += self._cache.get(word) or self._encode_word(word)
            lengths[i] = len(ids) - before
        return np.array(ids, np.int32), lengths

    def _encode_word(self, word: str) -> list[int]:
        ids: list[int] = []
        for piece in self._bpe.segment_tokens([WORD_BEGIN + word]):
            # A merge that the text itself spells with "</w>" is no piece: write its characters.
            ids += (
                [self._ids[piece]] if piece in self._ids else [self._ids.get(c, 0) for c in piece]
            )
        # Words are many in a large corpus: one cache, ours, and of bounded size.
        self._bpe.cache.clear()
        if len(self._cache) >= CACHED_WORDS:
            self._cache.clear()
        self._cache[word] = ids
        return ids

    def normalise(self, line: str) -> str:
        return " ".join(_words(line))


_Model = _SentencePieceModel | _BPEModel


def _read_model(path: Path) -> tuple[_Model, str]:
    """The model and the SHA-256 of its file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot read this subword model ({error.strerror})") from error
    try:
        # A SentencePiece model is a protocol buffer, whose first byte is the tag of a field.
        model = _BPEModel(content) if content[:1] == b"{" else _SentencePieceModel(content)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a subword model") from error
    return model, hashlib.sha256(content).hexdigest()


# --- the vocabulary -----------------------------------------------------------------------------


def write_vocabulary(models: Mapping[str, Path], path: Path) -> None:
    """Write the union of the models' pieces: specials, then model after model, each piece once.

    `models` gives each language's model file; languages that share a model name the same file.
    A piece that looks like a special ("<s>" is text in web pages) is not one: it has its own id.
    """
    names = {language: os.path.relpath(model, path.parent) for language, model in models.items()}
    pieces: dict[str, None] = {}
    digests: dict[str, str] = {}
    kinds: set[str] = set()
    for name in dict.fromkeys(names.values()):
        model, digests[name] = _read_model(path.parent / name)
        kinds.add(model.kind)
        pieces.update(dict.fromkeys(model.pieces[1:]))
    if len(kinds) != 1:
        raise UserError(f"{path}: a vocabulary needs models of one kind, not {sorted(kinds)}")
    if len(pieces) + len(SPECIALS) > MAX_VOCABULARY:
        raise UserError(
            f"{path}: {len(pieces) + len(SPECIALS)} pieces, more than the {MAX_VOCABULARY} that "
            f"16-bit ids allow: lower subwords.size"
        )
    vocabulary = {
        "version": VERSION,
        "kind": kinds.pop(),
        "models": names,
        "sha256": digests,
        "pieces": [*SPECIALS, *pieces],
    }
    write_json(path, vocabulary)


def _surface(pieces: str) -> str:
    """Written pieces as text: a mark is a space, but none stands before the first word."""
    return pieces.lstrip(WORD_BEGIN).replace(WORD_BEGIN, " ")


class Subwords:
    """The encoders of all languages over one vocabulary."""

    def __init__(
        self, path: Path, pieces: list[str], models: Mapping[str, tuple[_Model, np.ndarray]]
    ) -> None:
        self.path = path
        self.pieces = pieces
        self.size = len(pieces)
        self.languages = tuple(models)
        self._models = models
        self._surfaces = ["", "", "", UNKNOWN_SURFACE, *pieces[len(SPECIALS) :]]

    @classmethod
    def load(cls, path: Path) -> "Subwords":
        """Read a vocabulary file and its models, which must be the ones it was made from."""
        path = Path(path)
        stored = read_json(path)
        if not isinstance(stored, dict) or stored.get("version") != VERSION:
            raise UserError(f"{path}: not a vocabulary file of version {VERSION}")
        try:
            pieces, names, digests = stored["pieces"], stored["models"], stored["sha256"]
        except KeyError as error:
            raise UserError(f"{path}: not a vocabulary file, {error} is missing") from error
        ids = {piece: i for i, piece in enumerate(pieces) if i >= len(SPECIALS)}
        loaded: dict[str, tuple[_Model, np.ndarray]] = {}
        for name in dict.fromkeys(names.values()):
            model, digest = _read_model(path.parent / name)
            if digest != digests[name]:
                raise UserError(f"{path.parent / name}: not the model that {path} was made from")
            try:
                table = np.array([UNK, *(ids[piece] for piece in model.pieces[1:])], np.uint16)
            except KeyError as error:
                raise UserError(f"{path}: {error} of model {name} is missing") from error
            loaded[name] = model, table
        return cls(path, pieces, {language: loaded[name] for language, name in names.items()})

    def encode_flat(self, lines: Sequence[str], language: str) -> Encoded:
        """The ids of all lines, one after the other, and the length of each line."""
        return self.encode_bytes([line.encode() for line in lines], language)

    def encode(self, lines: Sequence[str], language: str) -> list[np.ndarray]:
        """The ids of each line, without specials."""
        ids, lengths = self.encode_flat(lines, language)
        ends = np.cumsum(lengths).tolist()
        return [ids[end - n : end] for end, n in zip(ends, lengths.tolist(), strict=True)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of any ids; specials vanish, an unknown piece shows as U+2047."""
        return _surface("".join([self._surfaces[i] for i in ids]))

    def normalise(self, line: str, language: str) -> str:
        """What decoding gives back of `line`, where the model knows all its characters."""
        return self._model(language)[0].normalise(line)

    def encode_bytes(self, lines: list[bytes], language: str) -> Encoded:
        """The same for lines in UTF-8."""
        model, table = self._model(language)
        ids, lengths = model.encode(lines)
        return table[ids], lengths

    def _model(self, language: str) -> tuple[_Model, np.ndarray]:
        try:
            return self._models[language]
        except KeyError:
            known = ", ".join(self.languages)
            raise UserError(f"{self.path}: no subwords for {language!r}, only {known}") from None


# --- encoding many lines ------------------------------------------------------------------------


def encode_blocks(
    vocabulary: Path, blocks: Iterable[Sequence[bytes]], languages: Sequence[str], threads: int
) -> Iterator[tuple[Encoded, ...]]:
    """Encode blocks of lines in threads; results in order, a bounded number of blocks under way.

    A block is one text a side, its lines joined by newlines. SentencePiece lets go of the
    interpreter's lock, so threads serve as well as processes; subword-nmt is Python and does not.
    """
    subwords = Subwords.load(vocabulary)

    def encode(block: Sequence[bytes]) -> tuple[Encoded, ...]:
        return tuple(
            subwords.encode_bytes(text.split(b"\n"), language)
            for text, language in zip(block, languages, strict=True)
        )

    with ThreadPoolExecutor(threads) as pool:
        yield from ordered_map(pool, encode, blocks, ahead=2 * threads)
