"""CTranslate2 as a peer: decoding only; MODEL is our model in CTranslate2's format.

With one translator the threads share each matrix product; with two (`--inter-threads 2`), each
takes batches of its own and has threads/2 to itself.
"""

import argparse
import json
import time
from typing import Any

from measure import END, command_line, report_decoding, sentences, toolkit

SEARCH: dict[str, dict[str, Any]] = {
    "greedy": {"beam_size": 1},
    "beam5": {"beam_size": 5, "length_penalty": 1.0},
    "sampling": {"beam_size": 1, "sampling_topk": 0, "sampling_temperature": 1.0},
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--inter-threads", type=int, choices=[1, 2], default=1)
    parser.add_argument("--batch-type", choices=["examples", "tokens"], default="examples")
    parser.add_argument("--compute-type", default="float32")


def decode(arguments: argparse.Namespace) -> None:
    translator = toolkit("ctranslate2").Translator(
        str(arguments.model),
        device="cpu",
        compute_type=arguments.compute_type,
        inter_threads=arguments.inter_threads,
        intra_threads=max(1, arguments.threads // arguments.inter_threads),
    )
    source = sentences(arguments.data / "test.src")
    config = json.loads((arguments.model / "config.json").read_text())
    if not config.get("add_source_eos", False):  # else the library adds it
        source = [[*pieces, END] for pieces in source]
    began = time.perf_counter()
    results = translator.translate_batch(
        source,
        max_batch_size=arguments.batch,
        batch_type=arguments.batch_type,
        max_decoding_length=arguments.max_tokens,
        **SEARCH[arguments.mode],
    )
    seconds = time.perf_counter() - began
    report_decoding(arguments.output, seconds, [result.hypotheses[0] for result in results])


if __name__ == "__main__":
    command_line(train=None, decode=decode, options=options)
