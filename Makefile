# make demo | make test | make check | make bench; each installs what it needs by itself.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: help install demo test test-all check format bench pictures clean

help:
	@echo "make install   the environment, in .venv (the other targets call it)"
	@echo "make demo      the whole experiment in small, on invented languages, with its report"
	@echo "make test      the tests;  make test-all  also the slow ones"
	@echo "make check     formatting, lint, types, workflow"
	@echo "make bench     speed against peers (benchmarks/)"
	@echo "make pictures  those of the README, anew"

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c "$$CAN_INSTALL"
	@echo "Installing into .venv: two minutes, more where the network is slow."
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install -qq --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' || \
		{ echo "The installation did not end well. Once that is mended, the same command goes on."; exit 1; }
	@touch $@

# Runs on any Python: an old one must understand it.
define CAN_INSTALL
import os, shutil, sys
if sys.version_info < (3, 11):
    sys.exit("Python 3.11 or newer is needed, this is %d.%d. Try: make PYTHON=python3.11 ..." % sys.version_info[:2])
if not os.access(".", os.W_OK):
    sys.exit("%s: cannot write here. Copy or clone the repository to a folder of your own." % os.getcwd())
if shutil.disk_usage(".").free < 3e9:
    sys.exit("%s: 3 GB of disk are needed." % os.getcwd())
endef
export CAN_INSTALL

demo: install
	@$(BIN)/python workflow/demo.py

test: install
	$(BIN)/pytest -n 2 --dist loadgroup -rs -m 'not slow'

test-all: install
	$(BIN)/pytest -n 2 --dist loadgroup -rs

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/mypy
	$(BIN)/metabt config schema | diff - config/schema.json
	@$(BIN)/snakemake --lint 2>&1 | $(BIN)/python .ci/judge_lint.py

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow
	$(BIN)/metabt config schema > config/schema.json

bench: install
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/engine.py

clean:
	rm -rf .venv .pytest_cache .hypothesis .mypy_cache .ruff_cache *.egg-info

# The README's: of the rules (needs graphviz), and of the demo's report (needs chromium-driver).
pictures: demo
	$(BIN)/snakemake --rulegraph -n all 2>/dev/null | sed /^Building/d | dot -Grankdir=LR -Tsvg > docs/rules.svg
	$(BIN)/python tests/report.py runs/demo/report.html docs/report.png
