# make run    the main job: boot a kernel, give it our LUNs, show its budget maps
# make test   all checks; make lint, make fuzz and make bench are parts of their own
#
# Each installs what it needs where it may (root on Debian or Ubuntu), and else
# says the command that does.

SHELL   := /bin/bash
GO      ?= go
PKGS    := ./...
# What ktest runs, and what the tests run beside: a program or file of each package, and the package.
RUN_NEEDS := qemu-system-x86_64=qemu-system-x86 fio=fio iscsistart=open-iscsi
NEEDS := $(RUN_NEEDS) qemu-img=qemu-utils iscsi-ls=libiscsi-bin iscsid=open-iscsi nbdkit=nbdkit multipathd=multipath-tools mke2fs=e2fsprogs ip=iproute2 busybox=busybox-static sg_inq=sg3-utils \
	hdparm=hdparm smartctl=smartmontools isnsd=open-isns-server isnsadm=open-isns-utils \
	modprobe=kmod gcc=gcc mkfs.xfs=xfsprogs /usr/include/stdio.h=libc6-dev /usr/include/iscsi/iscsi.h=libiscsi-dev /usr/lib/$(shell uname -m)-linux-gnu/qemu/block-iscsi.so=qemu-block-extra
# What make bench runs beside lunlab.
BENCH_NEEDS := tgtd=tgt istgt=istgt
# One of these has to be known to apt, which ktest downloads a kernel by.
KERNELS := linux-image-6.12-amd64 linux-image-amd64 linux-image-generic

# A folder of kernels to test on beside the distribution's: NAME/bzImage and
# NAME/modules. Tests run in their own folders, so the path is made absolute.
ifdef LUNLAB_KERNELS
export LUNLAB_KERNELS := $(abspath $(LUNLAB_KERNELS))
endif

.PHONY: all build run test lint fuzz bench setup clean FORCE
.NOTPARALLEL:

all: build

build: bin/lunlab

# The binary is static, since it is also the init of the guests that it boots.
bin/lunlab: FORCE
	@CGO_ENABLED=0 $(GO) build -o $@ ./cmd/lunlab
FORCE:

run: NEEDS := $(RUN_NEEDS)
run: setup build
	./bin/lunlab ktest $(ARGS)

# A guest and the target beside it keep two CPUs busy, and what they are asked to
# do has time limits: so half as many packages at once as there are CPUs.
TESTS_AT_ONCE ?= $(shell n=$$(nproc); echo $$((n > 3 ? n / 2 : 1)))
test: setup lint
	$(GO) build -race -o /dev/null $(PKGS)
	$(GO) test -race -p $(TESTS_AT_ONCE) -timeout 60m $(PKGS)
	$(GO) test ./queue/sim ./queue/share # the rest, which the race detector can't bear

lint:
	@fmt=$$(gofmt -l .); if [ -n "$$fmt" ]; then echo "gofmt -w these:"; echo "$$fmt"; exit 1; fi
	$(GO) vet $(PKGS)
	$(GO) tool staticcheck $(PKGS)

# Each fuzz target for FUZZTIME.
FUZZTIME ?= 30s
fuzz:
	@set -e; for p in $$($(GO) list $(PKGS)); do \
	  for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
	    echo "$$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$p; \
	  done; done

bench: NEEDS += $(BENCH_NEEDS)
bench: setup
	$(GO) test -run '^$$' -bench . -benchmem $(PKGS)
	$(GO) run ./test/bench $(BENCHARGS)

setup:
	@command -v $(GO) >/dev/null || { echo "lunlab needs Go: https://go.dev/dl"; exit 1; }
	@export PATH="$$PATH:/usr/sbin:/sbin"; missing=; \
	for n in $(NEEDS); do [ -e "$${n%=*}" ] || command -v "$${n%=*}" >/dev/null || missing="$$missing $${n#*=}"; done; \
	lists=; if command -v apt-cache >/dev/null && ! LC_ALL=C apt-cache policy $(KERNELS) 2>/dev/null | grep -q 'Candidate: [0-9]'; then lists=yes; fi; \
	[ -n "$$missing$$lists" ] || exit 0; \
	install="apt-get update$${missing:+ && apt-get install -y --no-install-recommends$$missing}"; \
	if ! command -v apt-get >/dev/null; then echo "lunlab needs, in Debian's names:$$missing"; exit 1; fi; \
	if [ "$$(id -u)" != 0 ]; then echo "Something is missing. Run: sudo sh -c '$$install'"; exit 1; fi; \
	echo "$$install"; export DEBIAN_FRONTEND=noninteractive; eval "$$install" >&2

clean:
	rm -rf bin
