# Two commands for a newcomer: `make demo` and `make test`. `make help` lists the rest.
# Needs Python 3.11 and make; everything else comes from the package registries.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
UV_VERSION := 0.13.9
UV := .cache/uv/bin/uv
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export UV_LINK_MODE ?= hardlink

.DEFAULT_GOAL := help
.PHONY: matrix help demo test docs test-unit test-verl test-vllm test-pythons lint format lock clean wheel

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

demo: $(STAMP) ## Train real verl on the CPU with telemetry on, and show where the time went (3 minutes)
	@$(BIN)/python tests/verl_cpu/demo.py runs

test: PYTHONS = --without 3.12
test: lint test-pythons $(STAMP) ## Run everything that checks the project (30 minutes)
	@sh tests/chromium.sh >/dev/null || true  # without it the tests of the page are skipped, with the reason
	$(BIN)/python -m pytest

test-unit: $(STAMP) ## Run the tests that train nothing (2 minutes)
	$(BIN)/python -m pytest -m "not verl"

test-verl: $(STAMP) ## Run the tests that train real verl (20 minutes)
	$(BIN)/python -m pytest -m verl

matrix: $(STAMP) ## Train in every mode of verl and write docs/modes.md (30 minutes)
	$(BIN)/python -m pytest tests/end_to_end/test_modes.py tests/end_to_end/test_interrupted.py \
		tests/end_to_end/test_surroundings.py --matrix
	$(BIN)/python tests/end_to_end/modes_page.py
	$(BIN)/python -m pytest tests/end_to_end/test_modes_page.py --matrix

test-vllm: $(UV) ## Run a real vLLM engine on the CPU under verl's own server (7 GB, once; 5 minutes)
	@sh tests/vllm_real/install.sh $(UV) $(PYTHON) .venv-vllm
	.venv-vllm/bin/python -m pytest -m vllm_real tests/vllm_real

test-pythons: $(STAMP) ## Run the unit tests on the lowest supported versions and on the other Pythons of this machine
	$(BIN)/python tests/pythons.py --uv $(UV) $(PYTHONS)

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
	@for set in all lowest unit ray-oldest verl-08 verl-07; do echo "resolving $$set"; sh requirements/lock.sh $(UV) $$set; done

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
