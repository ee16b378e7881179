"""The parts of an experiment as typed models: their keys, defaults and limits.

experiment.py puts them together, with the options of the methods (methods/). Every default that a
paper's result could depend on is written out in `config.yaml`; what has a default here is a
convenience of the format.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_VOCABULARY = 65_535  # token ids are stored in 16 bits
SPECIAL_TOKENS = 4  # padding, begin, end, unknown

ARCHIVED = ("url", "file")  # datasets that may be members of an archive

Count = Annotated[int, Field(gt=0, strict=True)]
Natural = Annotated[int, Field(ge=0, strict=True)]
Rate = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
Language = Annotated[str, Field(pattern=r"^[a-z]{2,3}$")]
Checksum = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
SettingName = Literal["standard", "multilingual"]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


# ---------------------------------------------------------------------------------------- data


class Dataset(Model):
    """Text, named by what exists already: exactly one of the first five keys."""

    mtdata: str | None = Field(None, description="an mtdata id: Statmt-europarl_wmt13-7-deu-eng")
    sacrebleu: str | None = Field(None, description="a sacreBLEU test set: wmt13, wmt14/full")
    ted: Literal["train", "dev", "test"] | None = Field(
        None, description="a part of the TED archive; its location is `ted_archive`"
    )
    url: str | None = Field(
        None, description="an http(s) address; `{lang}` stands for each side's language"
    )
    file: str | None = Field(
        None, description="a local file; `{lang}` stands for each side's language"
    )
    member: str | None = Field(
        None, description="the file to read inside an archive (url or file); may contain `{lang}`"
    )
    format: Literal["text", "tsv", "sgm"] = Field(
        "text", description="of a url or file: text and sgm have a file a side, tsv one for both"
    )
    columns: list[Natural] | None = Field(
        None, description="of a tsv: the columns of the sides, counted from 0"
    )
    sha256: Checksum | dict[Language, Checksum] | None = Field(
        None, description="of a url's file: one, or one for each language that `{lang}` stands for"
    )
    aligned_with: Language | None = Field(
        None, description="of monolingual text from TED: take the rows that this language has too"
    )
    lines: str | None = Field(
        None,
        pattern=r"^[1-9][0-9]*-([1-9][0-9]*( of [1-9][0-9]*)?)?$",
        description="a range of lines (pairs), counted from 1: 1-500, or 501- for all the rest; "
        "1-5 of 29 are the first five of every 29, all over the file",
    )

    @property
    def kind(self) -> str:
        return next(k for k in ("mtdata", "sacrebleu", "ted", "url", "file") if getattr(self, k))

    @property
    def line_range(self) -> tuple[int, int | None]:
        """First line (from 0) and the one after the last, or None for no end."""
        if self.lines is None:
            return 0, None
        first, last = self.lines.split(" of ")[0].split("-")
        return int(first) - 1, int(last) if last else None

    @property
    def lines_of_every(self) -> int | None:
        """Of how many lines each time the range is; None if it is one of the whole file."""
        _, of, every = (self.lines or "").partition(" of ")
        return int(every) if of else None

    @model_validator(mode="after")
    def _one_name(self) -> "Dataset":
        names = [k for k in ("mtdata", "sacrebleu", "ted", "url", "file") if getattr(self, k)]
        if len(names) != 1:
            got = " and ".join(names) or "none of them"
            raise ValueError(
                "a dataset is named by exactly one of mtdata, sacrebleu, ted, url, file; "
                f"this one has {got}"
            )
        for key, kinds in {"member": ARCHIVED, "columns": ARCHIVED, "sha256": ("url",)}.items():
            if getattr(self, key) is not None and names[0] not in kinds:
                raise ValueError(f"`{key}` goes with {' or '.join(kinds)}, not with {names[0]}")
        if self.format != "text" and names[0] not in ARCHIVED:
            raise ValueError(f"`format` goes with url or file; that of {names[0]} is known")
        if self.columns is not None and self.format != "tsv":
            raise ValueError("`columns` goes with format tsv")
        if self.aligned_with and names[0] != "ted":
            raise ValueError("`aligned_with` goes with ted")
        if self.url and not re.match(r"https?://[^/]+/.", self.url):
            raise ValueError(f"not an http(s) address: {self.url}")
        first, end = self.line_range
        if end is not None and end <= first:
            raise ValueError(f"the range of lines {self.lines} is empty")
        if self.lines_of_every and end and end > self.lines_of_every:
            raise ValueError(f"lines {self.lines}: there are no {end} in {self.lines_of_every}")
        return self


Datasets = Annotated[list[Dataset], Field(min_length=1)]


class Pair(Model):
    """One translation direction and its text."""

    setting: SettingName
    source: Language
    target: Language
    related: Language | None = Field(
        None, description="the related high-resource language S' (multilingual setting)"
    )
    parallel: Datasets = Field(description="S-T training pairs")
    related_parallel: Datasets | None = Field(None, description="S'-T training pairs")
    mono: Datasets = Field(description="target-language sentences to back-translate")
    metadev: Datasets = Field(description="S-T pairs that give MetaBT's backward model its reward")
    dev: Datasets = Field(description="S-T pairs for model selection")
    test: Datasets = Field(description="S-T pairs that are scored once")
    tokenised: bool = Field(
        False, description="words are split at spaces (Moses): joined before scoring"
    )

    @property
    def languages(self) -> list[str]:
        return [self.source, self.target, *([self.related] if self.related else [])]

    def roles(self) -> dict[str, list[Dataset]]:
        """What each set of the pair is made of, in the order in which they are prepared."""
        names = ["test", "dev", "metadev", "parallel", "related_parallel", "mono"]
        return {n.removesuffix("_parallel"): getattr(self, n) for n in names if getattr(self, n)}

    def sides(self, role: str) -> list[str]:
        """The languages of a set's sides."""
        if role == "mono":
            return [self.target]
        return [self.related or "" if role == "related" else self.source, self.target]

    @model_validator(mode="after")
    def _possible(self) -> "Pair":
        faults = list(self._faults())
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def _faults(self) -> Iterator[str]:
        if len(set(self.languages)) != len(self.languages):
            yield f"source, target and related must differ: {', '.join(self.languages)}"
        if self.setting == "standard" and (self.related or self.related_parallel):
            yield "the standard setting has no related language (related, related_parallel)"
        if self.setting == "multilingual" and not (self.related and self.related_parallel):
            yield "the multilingual setting needs related and related_parallel"
        held_out = ("metadev", "dev", "test")
        for i, a in enumerate(held_out):
            for b in held_out[i + 1 :]:
                if any(_overlap(x, y) for x in getattr(self, a) for y in getattr(self, b)):
                    yield f"{a} and {b} share text; MetaDev, dev and test must be different sets"
        for name in held_out:
            if any(_overlap(x, y) for x in getattr(self, name) for y in self.parallel):
                yield f"{name} and parallel share text; give them disjoint ranges with `lines`"


def _overlap(a: Dataset, b: Dataset) -> bool:
    """Do two entries take lines of the same file?"""
    keys = ("mtdata", "sacrebleu", "ted", "url", "file", "member")
    if any(getattr(a, k) != getattr(b, k) for k in keys):
        return False
    if a.lines_of_every != b.lines_of_every:
        return True
    (first_a, end_a), (first_b, end_b) = a.line_range, b.line_range
    return (end_b is None or first_a < end_b) and (end_a is None or first_b < end_a)


class Subwords(Model):
    kind: Literal["sentencepiece", "bpe"] = Field(description="bpe is subword-nmt's")
    sharing: Literal["joint", "separate"] = Field(
        description="one model for all languages, or one each with the union of their pieces"
    )
    size: Annotated[int, Field(ge=8, strict=True)] = Field(
        description="pieces of each model (bpe: merges)"
    )
    algorithm: Literal["unigram", "bpe"] = Field(
        "unigram", description="SentencePiece's segmentation algorithm"
    )
    character_coverage: Annotated[float, Field(gt=0.9, le=1)] = 1.0
    sample: Count = Field(description="at most so many lines are drawn to train each model")
    seed: Natural = 1

    def vocabulary_limit(self, languages: int) -> int:
        return self.size * (languages if self.sharing == "separate" else 1) + SPECIAL_TOKENS


# ------------------------------------------------------------------------------ models, training


class Transformer(Model):
    layers: Count = Field(description="of the encoder and of the decoder")
    width: Count
    feed_forward: Count
    heads: Count
    dropout: Share
    norm: Literal["post", "pre"] = "post"

    @model_validator(mode="after")
    def _divisible(self) -> "Transformer":
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width {self.width} is not a multiple of twice the {self.heads} heads"
            )
        return self


class Optimiser(Model):
    name: Literal["adam", "lamb", "sgd"]
    rate: Rate = Field(description="the learning rate at its peak")
    schedule: Literal["inverse_sqrt", "constant"]
    warmup: Natural = Field(description="steps until the peak")
    betas: list[Share] = Field([0.9, 0.98], min_length=2, max_length=2)
    epsilon: Rate = 1e-9
    clip: Annotated[float, Field(ge=0)] = Field(description="largest gradient norm; 0 = no limit")

    @model_validator(mode="after")
    def _warm(self) -> "Optimiser":
        if self.schedule == "inverse_sqrt" and self.warmup == 0:
            raise ValueError("the inverse_sqrt schedule needs a warmup of at least one step")
        return self


class Batch(Model):
    """What one update sees: a number of sentences, or of target tokens."""

    sentences: Count | None = None
    tokens: Count | None = None

    @model_validator(mode="after")
    def _one(self) -> "Batch":
        if (self.sentences is None) == (self.tokens is None):
            raise ValueError("a batch is given by sentences or by tokens: one of the two")
        return self

    def without(self, part: "Batch") -> "Batch":
        """What is left of a forward batch for parallel pairs."""
        unit = "tokens" if self.sentences is None else "sentences"
        whole, taken = getattr(self, unit), getattr(part, unit)
        if taken is None:
            raise ValueError(f"forward.batch is given by {unit}, so pseudo_batch must be, too")
        if taken >= whole:
            raise ValueError(
                f"pseudo_batch leaves no room for parallel pairs in forward.batch ({unit})"
            )
        return Batch(**{unit: whole - taken})


class Training(Model):
    steps: Count
    batch: Batch
    optimiser: Optimiser
    label_smoothing: Share
    validate_every: Count = Field(description="steps between two measurements on dev")
    select: Literal["loss", "bleu"] = Field("loss", description="what is best on dev")
    patience: Count | None = Field(None, description="measurements without a better one")
    average: Count = Field(1, description="the best so many models are averaged into the final one")
    diverged_after: Count = Field(
        20, description="steps in a row without a finite loss and gradient, which are skipped"
    )


class LanguageModel(Model):
    transformer: Transformer
    training: Training

    @model_validator(mode="after")
    def _no_bleu(self) -> "LanguageModel":
        if self.training.select == "bleu":
            raise ValueError("a language model has no BLEU: select by loss")
        return self


class Sampling(Model):
    top_k: Count | None = Field(default=None, description="sample among the k best; none = all")
    temperature: Rate = 1.0


class Setting(Model):
    """What the pairs of one setting share."""

    subwords: Subwords
    max_subwords: Count = Field(description="longer training sentences are left out")
    transformer: Transformer
    sampling: Sampling
    backward: Training = Field(description="pre-training of the backward model")
    initial: Training | None = Field(
        None,
        description="pre-training, on all parallel pairs, of the forward model that every method "
        "begins with; none = each begins anew, as in the paper",
    )
    forward: Training
    pseudo_batch: Batch = Field(
        description="monolingual sentences of a step: back-translated, they are a part of the "
        "forward model's batch, and the backward model is updated on them"
    )
    metadev_batch: Batch = Field(description="MetaDev pairs of a step")
    language_model: LanguageModel = Field(description="DualNMT's")
    methods: Annotated[list[Name], Field(min_length=1)]
    seeds: Annotated[list[Natural], Field(min_length=1)]

    @model_validator(mode="after")
    def _distinct(self) -> "Setting":
        for key in ("methods", "seeds"):
            values = getattr(self, key)
            if len(set(values)) != len(values):
                raise ValueError(f"{key} has a value twice: {values}")
        self.forward.batch.without(self.pseudo_batch)
        return self
