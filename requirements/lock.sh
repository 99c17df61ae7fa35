#!/bin/sh
# Writes the hash-locked requirement files anew from pyproject.toml (needs uv). Run it after a change of the extras.
set -eu
cd "$(dirname "$0")/.."
lock() {
    extra=$1; shift
    uv pip compile --quiet --generate-hashes --no-annotate --universal --python-version 3.11 --no-emit-index-url \
        --custom-compile-command "requirements/lock.sh" pyproject.toml --extra "$extra" --output-file "requirements/$extra.txt" "$@"
}
lock dev
for extra in operator router workers; do lock "$extra" --constraint requirements/dev.txt; done
uv pip compile --quiet --generate-hashes --no-annotate --universal --python-version 3.11 --no-emit-index-url --no-deps \
    --custom-compile-command "requirements/lock.sh" requirements/engine.in --output-file requirements/engine.txt
# Versions of Triton that the kernels must agree on, beside the one that torch pins.
for version in 3.8.0 3.9.0; do
    echo "triton==$version" | uv pip compile --quiet --generate-hashes --no-annotate --universal --python-version 3.11 \
        --no-emit-index-url --no-deps --custom-compile-command "requirements/lock.sh" - \
        --output-file "requirements/triton-$version.txt"
done
