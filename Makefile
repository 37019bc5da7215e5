# Every command of the project; `make` alone lists them. Each does all of its own set-up.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
PYTHON := $(VENV)/bin/python
UV := $(VENV)/bin/uv
# Airflow and Spark start their own parts by name.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
# Processes keep the bytecode of their imports, also if the environment forbids it:
# compiling Great Expectations or Airflow at every start takes seconds.
unexport PYTHONDONTWRITEBYTECODE
# Send no usage data.
export AIRFLOW__USAGE_DATA_COLLECTION__ENABLED := False
export GX_ANALYTICS_ENABLED := False

# The name of a stamp contains a checksum of its input. Only changed input is installed again, and
# an interrupted step leaves no stamp. The path counts because an environment cannot be moved.
MADE := $(VENV)/.made-$(shell pwd | cksum | tr ' ' -)
INSTALLED := $(MADE)-$(shell cat requirements.txt pyproject.toml | cksum | tr ' ' -)
INSTALLED_DEV := $(INSTALLED)-$(shell cksum < requirements-dev.txt | tr ' ' -)
# Disk space of a first set-up, and of a later run, in GB.
FREE_GB := $(if $(wildcard $(INSTALLED)),1,5)

# Ports of `make up`: by default those of the last start.
KAFKA_PORT ?=
PORT ?=

# Object store of the tables, for `make setup`. The jars of a store that was set up before stay.
# The environment does not set it, because other programs may use the variable STORE.
ifneq ($(origin STORE),command line)
STORE :=
endif
KNOWN_STORES := $(notdir $(patsubst %/,%,$(dir $(wildcard include/jvm/stores/*/ivy.xml))))
STORES_SET_UP = $(sort $(STORE) \
    $(notdir $(patsubst %/,%,$(dir $(wildcard .tidemark/jvm/stores/*/verified)))))

# Removes the line of each installed package from uv's output.
WITHOUT_LIST := sed -u '/^ [-+~] /d'

PARTS := broker or registry or store or spark or airflow or e2e
FAST := not ($(PARTS) or slow or faults)
# Test processes share the broker, the registry, the Spark Connect server and Airflow. Tests often
# wait for a process or a timeout, so that two cores can run three of them.
PYTEST := $(PYTHON) -m pytest --dist worksteal -n 3

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# -- set-up --------------------------------------------------------------------------------------

.PHONY: preflight
preflight:
	@sh include/jvm/preflight.sh $(FREE_GB) $(if $(filter up,$(MAKECMDGOALS)),\
	    $(or $(KAFKA_PORT),9092) $(or $(PORT),8080))

$(MADE): | preflight
	@echo "[1/4] Python environment in $(VENV)"
	@# One that works and was made here stays: what it holds need not be installed again.
	@grep -qsF "$(CURDIR)/$(VENV)" $(VENV)/bin/activate && $(PYTHON) -m pip --version 2> /dev/null \
	    | grep -qF "(python 3.11)" || rm -rf $(VENV)
	@[ -d $(VENV) ] || "$$(sh include/jvm/preflight.sh --python)" -m venv $(VENV)
	@# uv, of the version and hashes that the lock of the development tools has.
	@awk '/^[^ #]/ { uv = /^uv==/ } uv && !/^ *#/' requirements-dev.txt > $(VENV)/uv.txt
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.txt
	@touch $@

$(INSTALLED): $(MADE)
	@echo "[2/4] Python packages of requirements.txt (a minute or two the first time)"
	@rm -f $(MADE)-*
	@$(UV) pip install --require-hashes --compile-bytecode -r requirements.txt 2>&1 | $(WITHOUT_LIST)
	@$(UV) pip install --quiet --no-deps -e .
	@# A second registration of the plugin, which Airflow reports as an import error.
	@rm -rf include/*.egg-info
	@$(PYTHON) -m compileall -q include/tidemark
	@touch $@

$(INSTALLED_DEV): $(INSTALLED)
	@echo "[+] Development tools of requirements-dev.txt"
	@rm -f $(INSTALLED)-*
	@$(UV) pip install --require-hashes --compile-bytecode -r requirements-dev.txt 2>&1 \
	    | $(WITHOUT_LIST)
	@touch $@

.PHONY: jvm
jvm: $(INSTALLED)
	@$(PYTHON) include/jvm/fetch.py --heading "[3/4] JVM parts: Delta, Kafka (minutes the first time)"

.PHONY: store-jars
store-jars: jvm
	$(if $(filter-out $(KNOWN_STORES),$(STORE)),\
	    $(error STORE=$(STORE) is unknown, expected one of: $(KNOWN_STORES)))
	@for store in $(STORES_SET_UP); do \
	    $(PYTHON) include/jvm/fetch.py --parts include/jvm/stores/$$store \
	        --into .tidemark/jvm/stores/$$store --heading "[+] Jars for tables in $$store"; \
	    $(PYTHON) include/jvm/build.py include/jvm/stores/$$store .tidemark/jvm/stores/$$store/own; \
	done

.PHONY: archive
archive: jvm
	@$(PYTHON) include/jvm/archive.py --heading "[4/4] Class archive, for faster starts of Spark (a minute)"

.PHONY: setup
setup: preflight $(INSTALLED) jvm store-jars archive ## Install all that Tidemark needs to run; for tables in S3: make setup STORE=s3
	@[ -z "$(filter $@,$(MAKECMDGOALS))" ] || echo "Set-up complete. Next: make up, or read docs/tutorial.md"

.PHONY: registry
registry: $(INSTALLED) ## Download a schema registry; docs/how-to/connections.md starts it
	@$(PYTHON) include/jvm/fetch.py --parts tests/registry --into .tidemark/registry \
	    --heading "[+] Schema registry Apicurio (100 MB the first time)"

TEST_STORES := .tidemark/stores
STORE_PYTHON := $(TEST_STORES)/.made-$(shell cat requirements.txt tests/stores/requirements.txt 2> /dev/null | cksum | tr ' ' -)

# A separate environment, because its packages conflict with requirements.txt.
$(STORE_PYTHON): $(INSTALLED)
	@rm -rf $(TEST_STORES)/.made-* $(TEST_STORES)/python
	@$(UV) venv --quiet --python $(PYTHON) $(TEST_STORES)/python
	@$(UV) pip install --quiet --python $(TEST_STORES)/python/bin/python --require-hashes \
	    -r tests/stores/requirements.txt
	@touch $@

.PHONY: stores
stores: $(STORE_PYTHON)
	@$(PYTHON) include/jvm/fetch.py --parts tests/stores --into $(TEST_STORES) \
	    --heading "[+] Object stores of the tests (40 MB the first time)"

.PHONY: browser
browser: $(INSTALLED)
	@sh tests/browser.sh --install > /dev/null
	@$(PYTHON) include/jvm/fetch.py --parts tests/axe --into .tidemark/axe \
	    --heading "[+] Rules of accessibility for the tests of pages (1 MB)"

.PHONY: prometheus
prometheus:
	@sh tests/prometheus.sh --install > /dev/null

TEST_PARTS := registry stores browser prometheus

.PHONY: setup-dev
setup-dev: STORE := $(KNOWN_STORES)
setup-dev: setup $(INSTALLED_DEV) $(TEST_PARTS) ## Install the tools for checks and tests as well
	@[ -z "$(filter $@,$(MAKECMDGOALS))" ] || echo "Set-up complete. Next: make check"

.PHONY: lock
lock: $(MADE) ## Resolve requirements*.in again into requirements*.txt
	@for name in requirements requirements-dev requirements-docker tests/stores/requirements; do \
	    echo "$$name.txt"; \
	    $(UV) pip compile $$name.in --quiet --python-version 3.11 --generate-hashes -o $$name.txt; \
	done

# -- run -----------------------------------------------------------------------------------------

.PHONY: demo
demo: setup ## Watch it work: broker, Airflow, Spark, tables and checks, then stop all
	@$(VENV)/bin/tidemark demo

.PHONY: up
up: setup ## Start broker, Spark server and Airflow; other ports: make up KAFKA_PORT=9192 PORT=8180
	@$(VENV)/bin/tidemark up $(if $(KAFKA_PORT),--kafka-port $(KAFKA_PORT)) \
	    $(if $(PORT),--port $(PORT))

.PHONY: down
down: ## Stop what `make up` started
	@if [ -x $(VENV)/bin/tidemark ]; then $(VENV)/bin/tidemark down; else echo "nothing is set up"; fi

.PHONY: bench
bench: setup-dev ## Compare with Spark's own ways to read Kafka, as ratios
	@$(PYTHON) -m bench

.PHONY: docs
docs: setup-dev ## Build the documentation as a site in .tidemark/site
	@$(PYTHON) -m docs.diagrams
	@$(PYTHON) -m sphinx --quiet --fail-on-warning --keep-going docs .tidemark/site
	@echo "file://$(CURDIR)/.tidemark/site/index.html"

.PHONY: screenshots
screenshots: setup-dev ## Take the pictures of the console again, from the data of make demo
	@$(PYTHON) -m docs.screenshots

# -- check ---------------------------------------------------------------------------------------

.PHONY: static-checks
static-checks: $(INSTALLED_DEV)
	@echo "== format" && ruff format --check
	@echo "== lint" && ruff check
	@echo "== types" && mypy
	@echo "== architecture" && lint-imports

.PHONY: checked
checked: STORE := $(KNOWN_STORES)
checked: $(INSTALLED_DEV) jvm store-jars $(TEST_PARTS)
	@# The first time, both take most of a minute on one core.
	@$(MAKE) --jobs 2 archive static-checks

.PHONY: check
check: checked ## Format, lint, types, architecture, fast tests (about two minutes)
	@echo "== fast tests" && $(PYTEST) -m "$(FAST)"

.PHONY: test
test: checked ## All of check, and tests on real Kafka, Spark and Airflow
	@echo "== tests" && $(PYTEST) -m "not faults"

.PHONY: test-faults
test-faults: setup-dev ## The whole fault matrix: crashes, zombies, hostile logs, brokers, fences
	@$(PYTEST) -m faults --ignore=tests/model --ignore=tests/faults
	@$(PYTEST) tests/model tests/faults tests/spark/test_other_users.py
	@# Tests of three folders again, with tables that are opened and changed as in object stores.
	@$(PYTEST) --copied-logs -m "$(FAST)" tests/delta tests/bronze tests/silver

.PHONY: clean
clean: down ## Remove .venv, caches and everything under .tidemark, tables included
	@rm -rf $(VENV) .tidemark .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@rm -rf include/*.egg-info
	@find . -name __pycache__ -prune -exec rm -rf {} +
