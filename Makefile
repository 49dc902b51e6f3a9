# Two commands: `make demo` shows what autoinstr does, `make test` shows that it works. Each sets up what it needs.
# `make bench` measures; CONTRIBUTING.md says more.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)

.PHONY: demo test bench lint clean

$(VENV)/.demo: pyproject.toml autoinstr/__init__.py
	@PYTHON="$(PYTHON)" UV="$(UV)" sh tests/environment.sh $(VENV) '.[demo]'
	@touch $@

# The example under `opentelemetry-instrument`, as a user would run it, and then the report of the run.
demo: $(VENV)/.demo
	PATH="$(CURDIR)/$(BIN):$$PATH" AUTOINSTR_SPAN_GROUPS=per_step \
		opentelemetry-instrument python examples/run_grpo.py
	$(BIN)/autoinstr report

test:
	@PYTHON="$(PYTHON)" UV="$(UV)" sh tests/run_all.sh

lint: $(VENV)/.demo
	@PYTHON="$(PYTHON)" UV="$(UV)" LINT_ONLY=1 sh tests/run_all.sh

bench:
	@PYTHON="$(PYTHON)" UV="$(UV)" sh tests/bench/run.sh

clean:
	rm -rf $(VENV) .venv-* .bench autoinstr-runs build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
