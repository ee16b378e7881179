"""`metabt <verb>`: the verbs are those of the workflow's rules; each is useful by hand, too."""

import argparse
import os
import sys
from collections.abc import Sequence

from metabt import __version__
from metabt.errors import EXIT_INTERRUPTED, Interrupted, UserError
from metabt.verbs import analysis, evaluation, experiment, models, text

# Verbs import what they need when they run: `metabt --help` answers at once.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb. What the user can mend is told in a sentence, without a traceback."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except UserError as error:
        print(f"metabt: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a full disk, a missing permission
        print(
            f"metabt: error: {error.filename or 'i/o'}: {error.strerror or error}", file=sys.stderr
        )
        return 1
    except Interrupted:
        print(
            "metabt: asked to stop; everything is saved, the same command goes on", file=sys.stderr
        )
        return EXIT_INTERRUPTED
    except KeyboardInterrupt:
        print("metabt: interrupted", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="metabt",
        description="The steps of the MetaBT experiment, one verb each. "
        "`snakemake all` runs them in order; `metabt VERB --help` explains one.",
    )
    parser.add_argument("--version", action="version", version=f"metabt {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for stage in (experiment, text, models, evaluation, analysis):
        stage.add(verbs)
    return parser


if __name__ == "__main__":
    sys.exit(main())
