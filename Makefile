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

export UV_LINK_MODE ?= hardlink

.DEFAULT_GOAL := help
.PHONY: matrix help demo demo-stack stack collector test docs test-unit test-verl test-vllm test-pipeline load test-gpu test-pythons lint format lock clean wheel boards boards-preview boards-grafana bench bench-quick bench-e2e bench-table

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

demo: $(STAMP) ## Train real verl on the CPU with telemetry on, and show where the time went (3 minutes)
	@$(BIN)/python tests/verl_cpu/demo.py runs

demo-stack: $(STAMP) collector ## Train real verl against a real Collector and Prometheus, and ask them in PromQL (4 minutes)
	@$(BIN)/python tests/verl_cpu/demo_stack.py runs

collector: ## Build the Collector, Prometheus and promtool that tests and `make stack` use (once, 15 minutes; kept in the user's cache)
	@sh collector/build.sh otelcol prometheus

stack: $(STAMP) collector ## Start a Collector and a Prometheus for trainings on this machine, until Ctrl-C
	@$(BIN)/verl-otel stack

# Who trains, and who needs programs that wait most of the time, go side by side; who measures time goes last, alone.
REAL := verl or ray or collector or browser
# A test that hangs says where, and fails, instead of stopping everything.
PATIENCE := --timeout 900

test: PYTHONS = --without 3.12
test: lint $(STAMP) ## Run everything that checks the project (40 minutes)
	@mkdir -p .cache; nice sh collector/build.sh otelcol prometheus alertmanager >.cache/programs.log 2>&1 &  # whoever needs them waits for it
	@sh tests/chromium.sh >/dev/null || true  # without it the tests of the page are skipped, with the reason
	$(BIN)/python tests/pythons.py --uv $(UV) $(PYTHONS)
	$(BIN)/python -m pytest $(PATIENCE) -n 3 --dist loadfile -m "not ($(REAL) or alone)"
	$(BIN)/python -m pytest $(PATIENCE) -n 3 --dist loadgroup -m "$(REAL)"
	$(BIN)/python -m pytest $(PATIENCE) -m "alone and not ($(REAL))"

test-unit: $(STAMP) ## Run the tests that train nothing (2 minutes)
	$(BIN)/python -m pytest -n 3 --dist loadfile -m "not ($(REAL) or alone)"

test-verl: $(STAMP) ## Run the tests that train real verl (20 minutes)
	$(BIN)/python -m pytest -m verl

matrix: $(STAMP) ## Train in every mode of verl and write docs/modes.md (30 minutes)
	$(BIN)/python -m pytest tests/end_to_end/test_modes.py tests/end_to_end/test_interrupted.py \
		tests/end_to_end/test_surroundings.py --matrix
	$(BIN)/python tests/end_to_end/modes_page.py
	$(BIN)/python -m pytest tests/end_to_end/test_modes_page.py --matrix

test-pipeline: $(STAMP) collector ## Break the real pipeline for as long as outages last: stores away for 10 minutes, a network for one, an older Collector (15 minutes, and 7 more once)
	$(BIN)/python -m pytest -m pipeline --pipeline tests/collector -k "not load"

load: $(STAMP) collector ## Find the highest rate that agent and gateway hold for a minute, try twice that, and fill the sampler's memory (10 minutes)
	$(BIN)/python -m pytest -q -m pipeline --pipeline tests/collector/test_load.py tests/collector/test_load_waiting.py

test-vllm: $(UV) ## Run a real vLLM engine on the CPU under verl's own server (7 GB, once; 5 minutes)
	@sh tests/vllm_real/install.sh $(UV) $(PYTHON) .venv-vllm
	.venv-vllm/bin/python -m pytest -m vllm_real tests/vllm_real

test-gpu: $(STAMP) ## Read a real GPU of this machine, and a process that computes on it; skipped where there is none (1 minute)
	$(BIN)/python -m pytest -m gpu tests/integrations/gpu

test-pythons: $(STAMP) ## Run the unit tests on the lowest supported versions and on the other Pythons of this machine
	$(BIN)/python tests/pythons.py --uv $(UV) $(PYTHONS)

boards: $(STAMP) ## Write the Grafana boards from dashboards/*.py into dashboards/generated, and both for Kubernetes
	$(BIN)/python -W ignore::DeprecationWarning -m dashboards.build
	$(BIN)/python collector/deploy/generate.py

boards-preview boards-grafana: PREVIEW = $(foreach run,$(wildcard tests/dashboards/recorded/2*),--recorded $(run)) --samples tests/dashboards/samples --scrape 1 --set window=30s
boards-preview: $(STAMP) ## Draw each board as a picture, from recorded runs or PREVIEW="--url http://..." (1 minute)
	$(BIN)/python -m dashboards.preview dashboards/pictures $(PREVIEW)

boards-grafana: $(STAMP) ## Photograph each board in a real Grafana, from recorded runs; GRAFANA_HOME=DIR is the unpacked Grafana (3 minutes)
	@$(BIN)/python -m dashboards.grafana dashboards/pictures/grafana $(PREVIEW)

bench: $(BENCH_STAMP) ## Measure what telemetry costs, ours and what one would use instead (15 minutes)
	$(BENCH)/bin/python -m benchmarks run --minutes 14 --json benchmarks/results/latest.json

bench-quick: $(BENCH_STAMP) ## The same with fewer processes, to see what is grossly wrong (2 minutes)
	$(BENCH)/bin/python -m benchmarks run --quick --minutes 2

bench-e2e: $(BENCH_STAMP) ## Measure real trainings with telemetry on and off (as long as they need)
	$(BENCH)/bin/python -m benchmarks run --suite end_to_end --json benchmarks/results/end_to_end.json

bench-table: $(BENCH_STAMP) ## Write the tables of README.md and the guide from benchmarks/results/headline.json
	$(BENCH)/bin/python -m benchmarks table --write

lint: $(STAMP) ## Check style, types and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

wheel: $(STAMP) ## Build the wheel and the source distribution into dist/
	$(BIN)/python -m build --installer uv --outdir dist

docs: $(STAMP) ## Write the pages of the guide that are made from the code
	$(BIN)/python docs/generate.py

lock: $(UV) ## Resolve the dependencies anew (requirements/*.txt)
	@for set in all lowest unit ray-oldest verl-08 verl-07 bench; do echo "resolving $$set"; sh requirements/lock.sh $(UV) $$set; done

clean: ## Remove what was built here; the caches of the user stay
	rm -rf $(VENV) .venv-* .cache build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(UV):
	@echo "[setup] installing uv $(UV_VERSION)"
	@$(PYTHON) -m venv .cache/uv
	@.cache/uv/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(STAMP): $(UV) requirements/all.txt pyproject.toml
	@echo "[setup] installing verl, torch, ray and the tools (5 GB, once; kept in the user's cache)"
	@test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	@$(UV) pip sync --python $(BIN)/python --require-hashes requirements/all.txt
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

$(BENCH_STAMP): $(UV) requirements/bench.txt pyproject.toml
	@echo "[setup] installing what the benchmarks compare with (5 GB, once; kept in the user's cache)"
	@test -x $(BENCH)/bin/python || $(UV) venv --quiet --python $(PYTHON) $(BENCH)
	@$(UV) pip sync --quiet --python $(BENCH)/bin/python --require-hashes requirements/bench.txt
	@$(UV) pip install --quiet --python $(BENCH)/bin/python --no-deps --no-build-isolation --editable .
	@touch $@
