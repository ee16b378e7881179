"""Judge `snakemake --lint` by its text: it exits 1 for every shell rule without a container."""

import re
import sys

# A conda environment or container per rule is not our way: one environment, pinned, for all rules.
ACCEPTED = ("Specify a conda environment or container for each rule.",)


def main() -> int:
    text = sys.stdin.read()
    findings = re.findall(r"^\s+\* (.+?):?$", text, re.MULTILINE)
    bad = [f for f in findings if not any(f.startswith(a.rstrip(":")) for a in ACCEPTED)]
    if bad or not findings:
        print(text)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
