#!/bin/sh
# Writes the hash-locked requirement files anew from pyproject.toml (needs uv). Run it after a change of the extras.
set -eu
cd "$(dirname "$0")/.."
# lock NAME SOURCE...: requirements/NAME.txt from a file of requirements, or from - for standard input
lock() {
    name=$1; shift
    uv pip compile --quiet --generate-hashes --no-annotate --universal --python-version 3.11 --no-emit-index-url \
        --custom-compile-command "requirements/lock.sh" --output-file "requirements/$name.txt" "$@"
}
# The images of router and worker hold none of the command line's code, hence not what it depends on.
extra() {
    python3 -c 'import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*project["optional-dependencies"][sys.argv[1]], sep="\n")' "$1"
}
lock dev pyproject.toml --extra dev
lock cli pyproject.toml --constraint requirements/dev.txt
lock operator pyproject.toml --extra operator --constraint requirements/dev.txt
for name in router workers; do
    wanted=$(extra "$name")
    echo "$wanted" | lock "$name" - --constraint requirements/dev.txt
done
lock engine requirements/engine.in --no-deps
# Versions of Triton that the kernels must agree on, beside the one that torch pins.
for version in 3.8.0 3.9.0; do echo "triton==$version" | lock "triton-$version" - --no-deps; done
