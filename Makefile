# Everything a developer or CI does, by one name each. `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO        ?= go
# buf runs beside the .proto files, the linter at the root; both are pinned.
BUF       := cd proto && $(GO) tool -modfile=../tools/go.mod buf
LINTER    := $(GO) tool -modfile=tools/lint/go.mod golangci-lint

# Packages whose goroutines meet: these run under the race detector too.
RACE_PKGS   ?= ./rpc/... ./cluster/... ./gateway/... ./cmd/node/... ./sdk/...
FUZZTIME    ?= 20s
FUZZCOUNT   ?= 20000
SOAKSECONDS ?= 1800
CHAOSROUNDS ?= 1
BENCHRUNS   ?= 3
BENCHROWS   ?=
BENCHTASKS  ?= 100000
BENCHMEGABYTES ?= 300
# Most of what slow tests do is wait, for elections, leases and other processes: of a
# package more of them run at a time than there are processors, and the slowest packages
# go first.
AT_A_TIME   ?= -p 2 -parallel 8
# Under the race detector they compute as well: with eight clusters at a time none is
# served in time on a busy machine, and all take longer than four at a time do.
RACE_AT_A_TIME ?= -p 2 -parallel 4
SLOW_PKGS   := ./test/cluster ./test/deploy ./test/restore ./cmd/node
# These compute, write much and know no clock. They have the machine for themselves
# when the others are done, whose elections and leases would run out beside them.
PATIENT_PKGS := ./test/sim ./test/property

.PHONY: help
help: ## list what can be made
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## thousands of tasks through real workers, the leader of three servers killed in the middle
	$(GO) run ./cmd/pulse demo

.PHONY: build
build: ## the binary, as bin/pulse
	$(GO) build -trimpath -o bin/pulse ./cmd/pulse

.PHONY: test
test: ## what has to pass before a change is sent
	@failed=; \
	$(GO) test -timeout 15m $(AT_A_TIME) $(SLOW_PKGS) $$($(GO) list ./... | grep -vE '/test/(sim|property)$$') || failed=yes; \
	$(GO) test -timeout 15m -p 2 $(PATIENT_PKGS) || failed=yes; [[ -z $$failed ]]

.PHONY: race
race: ## the packages with goroutines under the race detector
	$(GO) test -race -short -timeout 15m $(RACE_AT_A_TIME) ./cmd/node $(RACE_PKGS)

.PHONY: lint
lint: ## go vet, golangci-lint, buf lint
	$(GO) vet ./...
	$(LINTER) run --allow-parallel-runners ./...
	$(BUF) lint

# The base is the newest release tag, or the commit before this one.
PROTO_BASE ?= $(shell git describe --tags --abbrev=0 --match 'v*' 2>/dev/null || git rev-parse --verify --quiet HEAD~1)

.PHONY: breaking
breaking: ## refuse a .proto change that PROTO_BASE could not read
	@if [[ -n "$(PROTO_BASE)" ]] && git cat-file -e "$(PROTO_BASE):proto/buf.yaml" 2>/dev/null; then \
		base=$$(mktemp -d); trap 'rm -rf "$$base"' EXIT; \
		git archive "$(PROTO_BASE)" proto | tar -x -C "$$base"; \
		($(BUF) breaking --against "$$base/proto") && echo "proto: readable since $(PROTO_BASE)"; \
	else echo "proto: no earlier version to compare with"; fi

.PHONY: generate
generate: ## everything that is made from something else
	$(BUF) generate
	$(GO) generate ./...

.PHONY: fmt
fmt: ## gofmt and buf format
	gofmt -w $$(git ls-files '*.go' ':!*.pb.go')
	$(BUF) format -w

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (20s)
	@$(call each_fuzz_target,$(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "./$$dir")

# Coverage guides a fuzzer that has minutes, and building everything with it takes
# minutes. This one takes the corpus apart at random, as many inputs as the other
# tries in that time, with the packages as they are built for the other tests. By
# count: a time that ends while an input is being minimised fails the run.
.PHONY: fuzz-quick
fuzz-quick: ## every fuzz target on FUZZCOUNT (20000) inputs, not guided by coverage
	@mkdir -p .cache/fuzz
	@$(call each_fuzz_target,$(GO) test -c -o .cache/fuzz/test "./$$dir" && (cd "$$dir" && "$(CURDIR)/.cache/fuzz/test" -test.run '^$$' \
		-test.fuzz "^$$target$$" -test.fuzztime $(FUZZCOUNT)x -test.fuzzminimizetime 10x -test.fuzzcachedir "$(CURDIR)/.cache/fuzz"))

# each_fuzz_target runs a command with dir and target set.
define each_fuzz_target
set -e; git grep -lE '^func Fuzz' -- '*_test.go' | while read -r file; do \
	dir=$$(dirname "$$file"); \
	for target in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]*)\(.*/\1/p' "$$file"); do \
		echo "$$dir $$target"; \
		{ $(1); } || exit 1; \
	done; \
done
endef

.PHONY: bench
bench: ## the goals of docs/performance.md measured, BENCHRUNS times (3); BENCHROWS=memory,restart chooses, BENCHTASKS sizes (100000), BENCHMEGABYTES the state that is copied (300), PULSE_BENCH_PEERS=DIR adds others
	$(GO) run ./test/bench -runs $(BENCHRUNS) -rows '$(BENCHROWS)' -tasks $(BENCHTASKS) -megabytes $(BENCHMEGABYTES)

.PHONY: sdk-ts
sdk-ts: ## the TypeScript SDK, compiled and tested against a real node (needs node and npm)
	$(GO) build -o .cache/pulse ./cmd/pulse
	cd sdk/ts && npm ci --no-audit --no-fund && PULSE_BIN=$(CURDIR)/.cache/pulse npm test

.PHONY: soak
soak: ## random histories, seeds of the simulation, faults on real servers: SOAKSECONDS (1800) each
	PULSE_PROPERTY_SECONDS=$(SOAKSECONDS) $(GO) test -count=1 -timeout 0 ./test/property
	PULSE_SIM_SEEDS=1000 PULSE_SOAK=$(SOAKSECONDS)s $(GO) test -count=1 -timeout 0 ./test/sim
	PULSE_SOAK_SECONDS=$(SOAKSECONDS) $(GO) test -count=1 -timeout 0 -v -run TestSoak ./test/cluster

.PHONY: mutants
mutants: ## build the code wrong on purpose, one rule at a time; the tests must notice
	PULSE_MUTANTS=1 $(GO) test -count=1 -timeout 0 -run TestMutants -v -p 1 ./test/property ./test/sim ./test/access

.PHONY: sim
sim: ## play the seeded simulation of three machines; PULSE_SIM_SEED=n replays one
	$(GO) test -count=1 -timeout 0 ./test/sim

.PHONY: chaos
chaos: ## hurt real servers in every way there is, CHAOSROUNDS times (1); a round takes an hour, as root
	PULSE_CHAOS=1 $(GO) test -count=$(CHAOSROUNDS) -timeout 0 -v -p 1 ./test/cluster ./test/restore

.PHONY: cover
cover: ## a coverage profile, and the total
	@mkdir -p .cache
	$(GO) test -short -timeout 15m -coverpkg=./... -coverprofile=.cache/cover.out ./...
	$(GO) tool cover -func=.cache/cover.out | tail -1
