# Everything that is done to this project by command. `make help` lists it.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
# The first of the four ports that `make run` uses, two per node.
PORT ?= 7600
# Seeds for `make simulate`: one, or a range, of any runs or of a profile (`links:1..500`; halts, lives, echoes, full, moves).
SEEDS ?= 1..5000
# How long `make churn` lasts.
CHURN_SECONDS ?= 600
# Arguments for the benches: `make bench-transfer ARGS=--quick`.
ARGS ?=
# The trace that `make evidence` replays; a generated one without it.
TRACE ?=

.PHONY: help setup setup-test run stop test lint test-rust test-rdma simulate churn doc smoke bench-quick bench-transfer bench-placement bench-control bench-eviction bench-rdma evidence deny build clean-run

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

run: setup build ## Start two nodes, put a file through one, get it through the other (ONCE=1: end after the check; PORT=7600)
	@PORT=$(PORT) ONCE=$(ONCE) scripts/run.sh

stop: ## Stop the nodes of a `make run` that was left behind
	@RUN_DIR=$(RUN_DIR) scripts/stop.sh

test: setup-test lint test-rust doc smoke bench-quick ## Everything that must hold before a change lands
	@echo "make test: all passed"

build: ## Build tenond and tenon, optimised
	$(CARGO) build --locked --release -p tenon-agent --bins

setup: ## Install the missing system packages that building and running need
	@scripts/setup.sh run

setup-test: ## The same, with what the tests need on top
	@scripts/setup.sh test

lint: ## Formatting and clippy, warnings denied
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets --all-features -- -D warnings
	$(CARGO) fmt --manifest-path integration/witness/Cargo.toml --check

test-rust: ## All unit, property, conformance and whole-system tests
	$(CARGO) build --locked -p tenon-agent --bins
	$(CARGO) test --locked --workspace --all-features

test-rdma: ## Those of RDMA alone, in a machine of their own; TENON_RDMA=native TENON_RDMA_DEVICES=device:address,…: on this host's devices
	$(CARGO) test --locked --workspace --all-features --test 'rdma_*'

simulate: ## Whole clusters in virtual time, with faults: SEEDS=4711 runs one seed again, SEEDS=1..5000 many
	SIMULATE_SEEDS=$(SEEDS) $(CARGO) test --locked --release -p tenon-store-core --test simulation -- \
		--ignored --nocapture the_promises_hold_in_the_named_seeds

churn: build ## Two full nodes under mixed sizes, with pins and readers that verify, for CHURN_SECONDS=600
	CHURN_SECONDS=$(CHURN_SECONDS) $(CARGO) test --locked -p tenon-integration --test eviction -- \
		--ignored --nocapture a_full_store_goes_on_taking_puts_for_as_long_as_is_wanted

doc: ## The API documentation, warnings denied
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --all-features

smoke: build ## `make run ONCE=1` on ports of its own
	@PORT=17600 ONCE=1 RUN_DIR=.run-smoke scripts/run.sh

bench-quick: ## Short forms of the benches, so that they cannot rot
	$(MAKE) bench-transfer ARGS=--quick
	$(MAKE) bench-placement ARGS=--quick
	$(MAKE) bench-control ARGS=--quick
	$(MAKE) bench-eviction ARGS=--quick
	$(MAKE) bench-rdma ARGS=--quick
	$(MAKE) evidence ARGS=--quick

bench-transfer: build ## Node-to-node put and get over TCP, beside a bare pump of the same bytes and memcpy
	$(CARGO) run --locked --release -p tenon-benches --bin bench_transfer -- $(ARGS)

bench-placement: ## Allocate/free pairs per second and latencies per strategy, beside malloc/free
	$(CARGO) run --locked --release -p tenon-benches --bin bench_placement -- $(ARGS)

bench-control: build ## What finding objects costs: calls, a holder's death, a home's death and return, memory; ARGS="--only scale"
	$(CARGO) run --locked --release -p tenon-benches --bin bench_control -- $(ARGS)

bench-eviction: build ## Puts into a full store beside puts into a half full one, and hit ratios by order of eviction; TRACE=file: over which requests
	$(CARGO) run --locked --release -p tenon-benches --bin bench_eviction -- $(if $(TRACE),--trace $(TRACE)) $(ARGS)

bench-rdma: build ## Put, get and the engine over RDMA, beside perftest, in a machine of their own; TENON_RDMA=native TENON_RDMA_DEVICES=…: on this host's devices
	$(CARGO) run --locked --release -p tenon-benches --bin bench_rdma -- $(ARGS)

evidence: build ## The experiments about placement, each with what it expected; ARGS="--only X1,X10"; TRACE=file: what X7 replays; without --quick it renews docs/evidence
	$(CARGO) run --locked --release -p tenon-benches --bin evidence -- $(if $(TRACE),--trace $(TRACE)) $(ARGS)

deny: ## Licences and advisories of the dependencies (installs cargo-deny if it is missing, which takes minutes)
	@command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny
	$(CARGO) deny check

clean-run: ## Remove what `make run` left in .run
	rm -rf .run .run-smoke
