# SPDX-License-Identifier: MIT
# `make demo` and `make test` are sufficient on a fresh Debian 12: each first does what is missing of the set-up.
PYTHON ?= python3
JOBS ?= $(shell nproc)
VENV = .venv/bin/python

.PHONY: help demo test test-all bench lint setup clean

help:
	@echo "make demo   attention of a real transformer on a simulated MI300X (or the GPU), checked against stock"
	@echo "make test   the tests, of large ones a sample of the cases (JOBS=$(JOBS) at a time; TESTS=... chooses files)"
	@echo "make test-all   every case of every test but those in engines' environments: many hours"
	@echo "make bench  what a call costs on the host, and builds"
	@echo "make lint   ruff"
	@echo "make setup  the set-up alone"
	@echo "make clean  removes .venv and everything else that is not in git here (not ~/.cache/aiter_like)"

demo: setup
	$(VENV) -m aiter_like demo

# Processes fill the cores: torch's further threads would only spin.
test:
	@PYTHON="$(PYTHON)" .ci/setup.sh tests
	OMP_NUM_THREADS=1 $(VENV) -m pytest -n $(JOBS) --dist worksteal $(SELECTED) $(TESTS)

test-all: SELECTED = -m "not engine"
test-all: test

bench: setup
	$(VENV) op_tests/bench/bench_host.py

lint: setup
	$(VENV) -m ruff check .

setup:
	@PYTHON="$(PYTHON)" .ci/setup.sh

clean:
	rm -rf .venv .engines .pytest_cache .ruff_cache .hypothesis build dist *.egg-info demo.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
