# The few commands of this project. `make help` lists them.

.DEFAULT_GOAL := help
.PHONY: help setup demo test build bench crash

CARGO ?= cargo

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Find or install the WebAssembly toolchain and build the plugins; run it as often as you like
	@command -v $(CARGO) >/dev/null 2>&1 || { \
	  echo "error: cargo was not found. Install Rust with:"; \
	  echo "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"; \
	  echo "then open a new shell and run this again."; \
	  exit 1; } >&2
	@command -v cc >/dev/null 2>&1 || { \
	  echo "error: no C compiler (cc) was found; Rust links with it. On Debian and its kin:"; \
	  echo "  sudo apt-get install -y build-essential"; \
	  exit 1; } >&2
	@$(CARGO) run -q -p retake-toolchain --bin retake-setup

demo: setup ## Watch failing turns being retried while executors are swapped; needs no key and no network
	@# Without -p, so that it has the tests' features, and with them the tests' build of everything.
	@$(CARGO) run --bin retake -- demo

test: setup ## Check the format, lint, and run all tests
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) test --workspace

build: setup ## Build the optimised `retake` command and print where it is
	@$(CARGO) build --release -p retake
	@echo "$${CARGO_TARGET_DIR:-$(CURDIR)/target}/release/retake"

bench: setup ## Measure: calls, swaps, parked turns
	$(CARGO) build --release -p retake
	$(CARGO) bench -p retake-tests --bench figures

crash: setup ## Kill real processes at random moments of 1,000 sessions; each must be good and go on (ROUNDS=N)
	RETAKE_CRASH_ROUNDS=$(or $(ROUNDS),1000) $(CARGO) test -p retake-tests --test suite crash:: -- --nocapture
