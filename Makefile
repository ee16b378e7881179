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

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; try: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

DEMO := $(BIN)/snakemake --directory runs/demo --configfile config/demo.yaml --quiet rules

demo: install
	$(DEMO) --cores 2 -- all
	@test runs/demo/report.html -nt runs/demo/results/tables/cost.html || $(DEMO) --report report.html -- all >/dev/null
	@cat runs/demo/results/tables/results.md
	@echo "The report: $(CURDIR)/runs/demo/report.html"

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

# Needs graphviz.
pictures: install
	$(BIN)/snakemake --rulegraph -n all 2>/dev/null | sed /^Building/d | dot -Grankdir=LR -Tsvg > docs/rules.svg
