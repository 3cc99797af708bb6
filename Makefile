# The same verbs for a person and for CI. `make help` lists them.

BIN := .venv/bin

# Checks and tests see a short, known environment and no stdin, so that neither a person's settings
# (PYTHONPATH, PYTEST_ADDOPTS, XDG_*, proxies, tokens) nor CI's can change what they say.
CLEAN := </dev/null env -i PATH="$$PATH" HOME="$$HOME" TMPDIR="$${TMPDIR:-/tmp}" LANG=C.UTF-8 CI="$${CI:-}"

# Locks are made by the oldest Python that is supported (its markers select the most packages), and
# by the public index alone: no mirror, wheel directory or settings file of this host has a say.
LOCK_PYTHON ?= python3.11
# mitmproxy, one of the peers that `make bench` compares with, wants a newer one.
LOCK_PEERS_PYTHON ?= python3.12
LOCK_ENV := env -u PIP_FIND_LINKS -u PIP_INDEX_URL -u PIP_EXTRA_INDEX_URL -u PIP_CONSTRAINT \
	-u PIP_NO_INDEX PIP_CONFIG_FILE=/dev/null CUSTOM_COMPILE_COMMAND="make lock"
LOCK_FLAGS := --quiet --generate-hashes --strip-extras --allow-unsafe \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host

.DEFAULT_GOAL := help
.PHONY: setup run test test-cluster cluster manifests stress lint fmt bench attack docs pictures site deb trial lock clean help

setup: ## make .venv from the locks and see to system packages; quiet when there is nothing to do
	@scripts/setup

run: ## show the whole idea in a minute, on this host alone
	@scripts/setup run
	$(BIN)/keyhole demo

test: lint ## lint, then every test but the attack battery; pure rooms must be covered whole
	@$(CLEAN) $(BIN)/python scripts/run_tests.py

cluster: ## as root, with Go: a real Kubernetes in namespaces of its own, until Ctrl-C; builds it once
	@scripts/setup cluster
	@$(BIN)/python -m scripts.cluster

test-cluster: ## as root, with Go: the tests that need a real Kubernetes
	@scripts/setup cluster
	@$(BIN)/python -m scripts.cluster build
	@$(CLEAN) XDG_CACHE_HOME="$${XDG_CACHE_HOME:-}" $(BIN)/python -m pytest -q -p no:cacheprovider tests/cluster --ignore tests/cluster/installed
	@# A cluster of their own, so a process of their own: each enters its node's network.
	@$(CLEAN) XDG_CACHE_HOME="$${XDG_CACHE_HOME:-}" $(BIN)/python -m pytest -q -p no:cacheprovider tests/cluster/installed

manifests: ## with Go: write the chart's roles, and packaging/kubernetes/keyhole.yaml from the chart
	@scripts/setup run
	@$(BIN)/python -m scripts.make_manifests

stress: setup ## the suite twice in random order: beside load, and with a clock that began a minute ago
	@$(CLEAN) scripts/stress

lint: setup ## ruff, mypy, the walls between the rooms, and names
	@$(CLEAN) $(BIN)/ruff check
	@$(CLEAN) $(BIN)/ruff format --check
	@$(CLEAN) $(BIN)/mypy
	@$(CLEAN) $(BIN)/lint-imports --no-logo
	@$(CLEAN) $(BIN)/python scripts/check_tests.py
	@$(CLEAN) $(BIN)/python scripts/check_names.py
	@$(CLEAN) $(BIN)/python scripts/check_startup.py

fmt: setup ## repair what ruff can repair, and format
	@$(CLEAN) $(BIN)/ruff check --fix
	@$(CLEAN) $(BIN)/ruff format

bench: ## measure, against peers that are installed apart, and write docs/performance.md; AGAINST=DIR adds an older checkout
	@scripts/setup peers
	AGAINST="$(AGAINST)" $(BIN)/python -m benchmarks --write docs/performance.md

attack: setup ## the long-running attack battery; SOAK=30m and FUZZ=2h have a gateway soak, and each fuzzer run, for that long
	@if $(BIN)/python -m scripts.cluster lacking >/dev/null; then scripts/setup cluster && $(BIN)/python -m scripts.cluster build; fi
	@$(BIN)/python -m tests.rigs.git.clients
	@$(CLEAN) SOAK="$(SOAK)" FUZZ="$(FUZZ)" XDG_CACHE_HOME="$${XDG_CACHE_HOME:-}" $(BIN)/python -m pytest -m attack

docs: setup ## write the generated parts of the documents; follow tests that moved
	$(BIN)/python scripts/make_docs.py
	$(BIN)/python -m scripts.make_man
	$(BIN)/python -m scripts.make_picture
	$(BIN)/python scripts/follow_tests.py

pictures: setup ## take the pictures of the documents again, by the tests that see them
	@$(CLEAN) PICTURES=write $(BIN)/python -m pytest -q tests/system/watch/test_screen.py \
		tests/system/web/test_approvals.py tests/system/web/test_page.py -k "question or click or always or drawn"

site: ## build the documents as a site with a search in dist/site; a link that leads nowhere fails
	@scripts/setup site
	@$(CLEAN) .venv-site/bin/python scripts/make_site.py

deb: ## build a package for this Debian or Ubuntu in dist/; packaging/debian/try tries it in a clean root
	@scripts/setup run
	@packaging/debian/build

trial: ## as root, try a new user's first minutes in a clean root file system
	@test "$${INSTALL:-deb}" != deb || test -e dist/keyhole_*.deb || $(MAKE) --no-print-directory deb
	@packaging/trial/run

lock: ## resolve requirements/*.lock anew; UPGRADE=1 also moves to the newest versions
	@set -eu; tools=$$(mktemp -d); trap 'rm -rf "$$tools"' EXIT; \
	$(LOCK_PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
		|| { echo "make lock: $(LOCK_PYTHON) is not Python 3.11; set LOCK_PYTHON" >&2; exit 1; }; \
	$(LOCK_PEERS_PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' \
		|| { echo "make lock: $(LOCK_PEERS_PYTHON) is not Python 3.12; set LOCK_PEERS_PYTHON" >&2; \
			exit 1; }; \
	equip() { $$2 -m venv "$$tools/$$1"; $(LOCK_ENV) "$$tools/$$1/bin/pip" install --quiet \
		--disable-pip-version-check pip-tools==7.6.2; }; \
	equip own $(LOCK_PYTHON); equip peers $(LOCK_PEERS_PYTHON); \
	compile() { tool=$$1; shift; $(LOCK_ENV) "$$tools/$$tool/bin/pip-compile" \
		--cache-dir "$$tools/cache" $(LOCK_FLAGS) $(if $(UPGRADE),--upgrade) "$$@"; }; \
	compile own --all-extras --output-file requirements/runtime.lock pyproject.toml; \
	compile own --output-file requirements/dev.lock requirements/dev.in; \
	compile own --output-file requirements/clients.lock requirements/clients.in; \
	compile own --output-file requirements/site.lock requirements/site.in; \
	compile peers --output-file requirements/peers.lock requirements/peers.in; \
	for each in agents page; do (cd requirements/$$each; $(if $(UPGRADE),rm -f package-lock.json;) \
		npm install --package-lock-only --ignore-scripts --omit-lockfile-registry-resolved \
		--no-audit --no-fund >/dev/null); done

clean: ## remove all that these verbs made, .venv included
	rm -rf .agents .page .venv .venv-clients .venv-peers .venv-site .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache dist
	find src tests benchmarks scripts -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile
