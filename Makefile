# Needs CPython 3.11 or newer with pip, gcc, and Debian's packages; everything else is installed by the targets.
# PYTHON names the interpreter that the environments are made from.
PYTHON ?= python3
export PYTHON
.DEFAULT_GOAL := help
.PHONY: help quickstart test lint format lock check-lowest clean

help: ## show the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

quickstart: ## tune a tiny model on the real vLLM, from nothing to a recommendation
	@scripts/install-nightshift runtime
	@scripts/install-vllm
	@NIGHTSHIFT_VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python .venv/bin/nightshift quickstart

test: ## install what the tests need, PostgreSQL included, and run everything
	@scripts/test

lint: ## style, format, types and import contracts
	@scripts/install-nightshift dev
	@scripts/lint

format: ## put every file into the one format
	@scripts/install-nightshift dev
	@.venv/bin/ruff check --fix . && .venv/bin/ruff format .

lock: ## write the lock files; UPGRADE=1 takes the newest versions
	@scripts/install-nightshift dev
	@scripts/lock $(if $(UPGRADE),--upgrade)

check-lowest: ## run the fast tests on the lowest versions that pyproject.toml allows
	@scripts/check-lowest

clean: ## remove the environments and caches, not the results of studies
	@rm -rf .venv .venv-vllm .venv-lowest .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage
