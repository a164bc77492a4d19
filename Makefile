# make run    the main job: boot a kernel, give it our LUNs, show its budget maps
# make test   all checks; make lint, make fuzz and make bench are parts of their own
#
# Each installs what it needs where it may (root on Debian or Ubuntu), and else
# says the command that does.

SHELL   := /bin/bash
GO      ?= go
PKGS    := ./...
# What lunlab and its tests run: the package that has it.
PACKAGES := qemu-system-x86 qemu-utils qemu-block-extra fio libiscsi-bin open-iscsi iproute2 sg3-utils kmod gcc libc6-dev

# A folder of kernels to test on beside the distribution's: NAME/bzImage and
# NAME/modules. Tests run in their own folders, so the path is made absolute.
ifdef LUNLAB_KERNELS
export LUNLAB_KERNELS := $(abspath $(LUNLAB_KERNELS))
endif

.PHONY: all build run test lint fuzz bench setup clean

all: build

build: bin/lunlab

# The binary is static, since it is also the init of the guests that it boots.
bin/lunlab: FORCE
	@CGO_ENABLED=0 $(GO) build -o $@ ./cmd/lunlab
FORCE:

run: setup build
	./bin/lunlab ktest $(ARGS)

test: setup lint
	$(GO) test -race -timeout 40m $(PKGS)

lint:
	@fmt=$$(gofmt -l .); if [ -n "$$fmt" ]; then echo "gofmt -w these:"; echo "$$fmt"; exit 1; fi
	$(GO) vet $(PKGS)
	$(GO) tool staticcheck $(PKGS)

# Each fuzz target for FUZZTIME.
FUZZTIME ?= 30s
fuzz:
	@set -e; for p in $$($(GO) list $(PKGS)); do \
	  for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
	    echo "$$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$p; \
	  done; done

bench: setup
	$(GO) test -run '^$$' -bench . -benchmem $(PKGS)
	$(GO) run ./test/bench $(BENCHARGS)

setup:
	@command -v $(GO) >/dev/null || { echo "lunlab needs Go: https://go.dev/dl"; exit 1; }
	@missing=; for p in $(PACKAGES); do \
	  dpkg-query -W -f '$${db:Status-Status}' $$p 2>/dev/null | grep -qx installed || missing="$$missing $$p"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if ! command -v apt-get >/dev/null; then echo "lunlab needs, in Debian's names:$$missing"; exit 1; fi; \
	if [ "$$(id -u)" != 0 ]; then echo "Missing packages. Run: sudo apt-get update && sudo apt-get install -y --no-install-recommends$$missing"; exit 1; fi; \
	echo "installing$$missing"; \
	apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends$$missing

clean:
	rm -rf bin
