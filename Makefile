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
SOAKSECONDS ?= 1800
CHAOSROUNDS ?= 3

.PHONY: help
help: ## list what can be made
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## thousands of tasks through real workers, the server killed in the middle
	$(GO) run ./cmd/pulse demo

.PHONY: build
build: ## the binary, as bin/pulse
	$(GO) build -trimpath -o bin/pulse ./cmd/pulse

.PHONY: test
test: ## what has to pass before a change is sent
	$(GO) test -timeout 15m ./...

.PHONY: race
race: ## the packages with goroutines under the race detector
	$(GO) test -race -short -timeout 15m $(RACE_PKGS)

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
	@grep -rEl --include='*_test.go' '^func Fuzz' . | while read -r file; do \
		sed -nE 's/^func (Fuzz[A-Za-z0-9_]*)\(.*/\1/p' "$$file" | while read -r target; do \
			echo "$$(dirname "$$file") $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "$$(dirname "$$file")"; \
		done; \
	done

.PHONY: bench
bench: ## load one node and print one JSON line
	$(GO) run ./cmd/pulse bench

.PHONY: soak
soak: ## random histories of the machine for SOAKSECONDS (1800)
	PULSE_PROPERTY_SECONDS=$(SOAKSECONDS) $(GO) test -count=1 -timeout 0 ./test/property

.PHONY: mutants
mutants: ## break the machine on purpose, one rule at a time; the tests must notice
	PULSE_MUTANTS=1 $(GO) test -count=1 -timeout 60m -run TestMutants -v ./test/property

.PHONY: sim
sim: ## play the seeded simulation of three machines; PULSE_SIM_SEED=n replays one
	PULSE_SIM=1 $(GO) test -count=1 -timeout 0 ./test/sim

.PHONY: chaos
chaos: ## kill, pause and restart real servers under load for about CHAOSROUNDS x 3 minutes (3)
	$(GO) test -count=$(CHAOSROUNDS) -timeout 0 -v ./test/cluster

.PHONY: cover
cover: ## a coverage profile, and the total
	@mkdir -p .cache
	$(GO) test -short -timeout 15m -coverpkg=./... -coverprofile=.cache/cover.out ./...
	$(GO) tool cover -func=.cache/cover.out | tail -1
