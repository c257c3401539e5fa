# Each target does all the set-up that it needs and is quick when there is nothing to do.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_ARGS ?=
QUICK := not slow and not gpu and not image

NATIVE_INPUTS := $(wildcard limiter/*/*.[ch] limiter/*/*.def limiter/*.map limiter/*.py simulator/*/*.[ch] \
	simulator/*/*.def simulator/*/*.csv simulator/*/*.map simulator/*/*/*.def simulator/*.py protos/*/*.proto protos/hypervisor/v1/*.proto \
	hypervisor/workers/shim/*.[ch] buildsupport/*.py setup.py)

.PHONY: all setup demo test test-slow test-clients test-arm64 test-image deb bench docs reference manifests lint format clean

all: setup

# The environment with all dependencies; anew when they change.
$(VENV)/.dependencies: pyproject.toml constraints.txt
	@buildsupport/prepare-python "$(PYTHON)" "$(VENV)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt setuptools cffi grpcio-tools wheel
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev,docs,kubernetes]'
	@touch $@

# The compiled parts, in place; only what changed.
$(VENV)/.built: $(VENV)/.dependencies $(NATIVE_INPUTS)
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

setup: $(VENV)/.built

demo: setup
	@$(BIN)/hypervisor demo $(DEMO_ARGS)

# What judges shares of time has the machine to itself; the rest, which mostly waits, runs side by side.
TIMED := tests/integration/limiter tests/integration/pacing tests/integration/standalone tests/integration/whole tests/chaos
ifdef TEST_ARGS
test: setup
	@$(BIN)/python -m pytest -q -m "$(QUICK)" $(TEST_ARGS)
else
test: setup
	@$(BIN)/python -m pytest -q -m "$(QUICK)" -n 2 --dist worksteal tests/unit tests/native
	@$(BIN)/python -m pytest -q -m "$(QUICK)" -n 2 --dist loadfile \
		$(addprefix --ignore ,tests/unit tests/native $(TIMED)) tests
	@$(BIN)/python -m pytest -q -m "$(QUICK)" $(TIMED)
endif

test-slow: setup
	@$(BIN)/python -m pytest -q -m "slow and not gpu and not clients" $(TEST_ARGS)

# Programs of others on the simulated driver; what they need is fetched into .cache the first time.
test-clients: setup
	@$(BIN)/python -m pytest -q -m "clients and not gpu" $(TEST_ARGS)

# The C sources for arm64, compiled and emulated (Debian: gcc-aarch64-linux-gnu, qemu-user).
test-arm64: setup
	@$(BIN)/python -m pytest -q -m slow tests/integration/limiter/test_arm64.py $(TEST_ARGS)

# The image's steps and the package for hosts, in root directories of Debian (as root, on Debian or Ubuntu). What they
# are made of is kept in .cache/image, so that a second run is quick.
test-image: setup
	@$(BIN)/python -m pytest -q -m image -n 2 --dist loadfile tests/image $(TEST_ARGS)

# dist/gpu-hypervisor_VERSION_ARCHITECTURE.deb for hosts with this PYTHON (PACKAGE_PYTHON=/usr/bin/python3).
PACKAGE_PYTHON ?= /usr/bin/python3
deb:
	@packaging/build-deb dist "$(PACKAGE_PYTHON)"

bench: setup
	@$(BIN)/python -m tests.bench $(BENCH_ARGS)

# The plain manifests of deploy/ and the table of values in the docs, from the Helm chart.
manifests: setup
	@$(BIN)/python -m buildsupport.manifests

# The site of docs/, into site/; fails on a broken link and on a page that is out of date.
docs: setup
	@$(BIN)/python -m buildsupport.reference --check
	@$(BIN)/mkdocs build --clean
	@echo "site/index.html"

# The pages that are made from the code, after a change of the code.
reference: setup
	@$(BIN)/python -m buildsupport.reference

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: setup
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format --quiet .

clean:
	rm -rf $(VENV) build dist site .cache hypervisor/native hypervisor/v1/*_pb2*.py* hypervisor/limits/_abi.* \
		hypervisor/simulation/_machine.*
