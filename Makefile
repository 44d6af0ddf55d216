# Two commands for a newcomer: `make demo` and `make test`. `make help` lists the rest.
# Needs Python 3.11 and make; everything else comes from the package registries.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
UV_VERSION := 0.13.9
UV := .cache/uv/bin/uv
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH := .venv-bench
BENCH_STAMP := $(BENCH)/.installed
DOCS := .venv-docs
DOCS_STAMP := $(DOCS)/.installed

export UV_LINK_MODE ?= hardlink
export PYTHONDONTWRITEBYTECODE :=  # some images set it; without bytecode a training takes more than twice as long

.DEFAULT_GOAL := help
.PHONY: help demo stack collector programs test test-full test-extra test-pipeline matrix lint docs boards bench lock

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

demo: $(STAMP) ## Train real verl on the CPU with telemetry on, and show where the time went (3 minutes)
	@$(BIN)/python -m tests.verl_cpu.demo runs

collector: ## Build the Collector, Prometheus and promtool that tests and `make stack` use (once, 15 minutes; kept in the user's cache)
	@sh collector/build.sh otelcol prometheus

programs: $(UV)
	@sh collector/build.sh otelcol prometheus alertmanager

stack: $(STAMP) collector ## Start a Collector and a Prometheus for trainings on this machine, until Ctrl-C
	@$(BIN)/verl-otel stack

test: $(STAMP) ## Run what every change has to pass (5 minutes); ONLY="types unit": these parts (`python -m tests.gate --list`)
	@$(BIN)/python -m tests.gate $(addprefix --only ,$(ONLY))

test-full: $(STAMP) programs ## Run everything, to the end (4 hours): what `make test` leaves out, other Pythons, all modes, outages; ONLY=pythons: this part
	@sh tests/chromium.sh >/dev/null || true  # without it the tests of the page are skipped, with the reason
	@$(BIN)/python -m tests.gate --full $(addprefix --only ,$(ONLY))

matrix: $(STAMP) ## Train in every mode of verl, count every number in each, and write docs/reference/modes.md (75 minutes)
	$(BIN)/python -m pytest @tests/end_to_end/matrix.txt --matrix
	$(BIN)/python -m tests.end_to_end.modes_page
	$(BIN)/python -m pytest tests/end_to_end/test_modes_page.py --matrix

test-pipeline: $(STAMP) programs ## Break the real pipeline for as long as outages last, and train on real clusters (50 minutes); LOAD=1: find the highest rate that it holds (10 minutes)
	$(BIN)/python -m pytest -m pipeline --pipeline $(if $(LOAD),tests/collector/test_load.py tests/collector/test_load_waiting.py,tests/collector -k "not load")

test-extra: $(if $(filter vllm,$(ONLY)),,$(STAMP)) ## Run what needs something special: ONLY=gpu (a real GPU), ONLY=vllm (a real vLLM engine on the CPU, 7 GB once), ONLY=beside (debuggers, tracers and other monitoring in the same process), ONLY=faults (faults planted in real trainings, and how many are named; 2 minutes a training; OUT=folder SEED=1 MODE=sync TRAININGS=15; an interrupted series continues; HEALTHY=mode STEPS=340: steps without a fault; own loops: python -m tests.end_to_end.faults.own_loops), ONLY=levers (levers pulled in real trainings, beside what was predicted; 40 minutes; an interrupted series continues)
ifeq ($(ONLY),gpu)
	$(BIN)/python -m pytest -m gpu tests/integrations/gpu
else ifeq ($(ONLY),vllm)
	@$(MAKE) --no-print-directory $(UV)
	@sh tests/vllm_real/install.sh $(UV) $(PYTHON) .venv-vllm
	.venv-vllm/bin/python -m pytest -m vllm_real tests/vllm_real
else ifeq ($(ONLY),beside)
	@test -x .venv-beside/bin/python || $(UV) venv --quiet --python $(PYTHON) .venv-beside
	@$(UV) pip sync --quiet --python .venv-beside/bin/python --require-hashes requirements/beside.txt
	@$(UV) pip install --quiet --python .venv-beside/bin/python --no-deps --no-build-isolation --editable .
	.venv-beside/bin/python -m pytest --timeout 900 -q -p no:cacheprovider tests/session/test_beside.py
else ifeq ($(ONLY),faults)
	$(BIN)/python -m tests.end_to_end.faults $(or $(OUT),runs/faults) --seed $(or $(SEED),1) $(if $(MODE),--mode $(MODE)) --trainings $(or $(TRAININGS),15) $(if $(HEALTHY),--healthy --mode $(HEALTHY) --steps $(or $(STEPS),340)) --page
else ifeq ($(ONLY),levers)
	$(BIN)/python -m tests.end_to_end.levers $(or $(OUT),runs/levers)
	$(BIN)/python -m tests.end_to_end.levers_page $(or $(OUT),runs/levers)/trainings.jsonl
else
	@echo "say which: make test-extra ONLY=gpu, ONLY=vllm, ONLY=beside, ONLY=faults or ONLY=levers" >&2; exit 2
endif

boards: RECORDED = $(foreach run,$(wildcard tests/dashboards/recorded/2*),--recorded $(run)) --samples tests/dashboards/samples --scrape 1 --set window=30s
boards: $(STAMP) ## Write the Grafana boards from dashboards/*.py; PICTURES=grafana takes a picture of each with recorded runs (GRAFANA_HOME=DIR is the unpacked Grafana)
ifeq ($(PICTURES),)
	$(BIN)/python -W ignore::DeprecationWarning -m dashboards.build
	$(BIN)/python collector/deploy/generate.py
else
	$(BIN)/python -m dashboards.grafana dashboards/pictures/grafana $(RECORDED)
endif

bench: $(BENCH_STAMP) ## Measure what telemetry costs, ours and what one would use instead (at most 10 minutes); SUITE=quick: 2 minutes; SUITE=scale: a run on 1,024 GPUs, simulated in parts (5 minutes); SUITE=end_to_end: real trainings; SUITE=table: write the tables of README.md and the docs
ifeq ($(SUITE),table)
	$(BENCH)/bin/python -m benchmarks table --write
	$(BENCH)/bin/python -m benchmarks.scale --table
else ifeq ($(SUITE),quick)
	$(BENCH)/bin/python -m benchmarks run --quick --minutes 2
else ifeq ($(SUITE),scale)
	$(BENCH)/bin/python -m benchmarks.scale
else ifeq ($(SUITE),end_to_end)
	$(BENCH)/bin/python -m benchmarks run --suite end_to_end --processes 2 --json benchmarks/results/end_to_end.json
else
	$(BENCH)/bin/python -m benchmarks run --minutes 3 --json benchmarks/results/latest.json
	$(BENCH)/bin/python -m benchmarks run --suite total --processes 3 --minutes 6 --json benchmarks/results/latest_total.json
endif

lint: $(STAMP) ## Check style, types and imports; FIX=1 formats first
	$(if $(FIX),$(BIN)/ruff check --fix . && $(BIN)/ruff format .)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP) $(DOCS_STAMP) ## Write the pages that are made from the code, then the site (.cache/site); PICTURES=1: take their pictures first
	$(if $(PICTURES),$(BIN)/python -m docs.pictures)
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet

lock: $(UV) ## Resolve the dependencies again (requirements/*.txt)
	@for set in all lowest unit ray-oldest verl-08 verl-07 bench beside docs; do echo "resolving $$set"; sh requirements/lock.sh $(UV) $$set; done

$(UV):
	@echo "[setup] installing uv $(UV_VERSION)"
	@$(PYTHON) -m venv .cache/uv
	@.cache/uv/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(STAMP): $(UV) requirements/all.txt pyproject.toml
	@echo "[setup] installing verl, torch, ray and the tools (5 GB, once; kept in the user's cache)"
	@test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	@$(UV) pip sync --quiet --python $(BIN)/python --require-hashes requirements/all.txt
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

$(BENCH_STAMP): $(UV) requirements/bench.txt pyproject.toml
	@echo "[setup] installing what the benchmarks compare with (5 GB, once; kept in the user's cache)"
	@test -x $(BENCH)/bin/python || $(UV) venv --quiet --python $(PYTHON) $(BENCH)
	@$(UV) pip sync --quiet --python $(BENCH)/bin/python --require-hashes requirements/bench.txt
	@$(UV) pip install --quiet --python $(BENCH)/bin/python --no-deps --no-build-isolation --editable .
	@touch $@

$(DOCS_STAMP): $(UV) requirements/docs.txt
	@echo "[setup] installing what builds the site"
	@test -x $(DOCS)/bin/python || $(UV) venv --quiet --python $(PYTHON) $(DOCS)
	@$(UV) pip sync --quiet --python $(DOCS)/bin/python --require-hashes requirements/docs.txt
	@touch $@
