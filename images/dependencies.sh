#!/bin/sh
# Installs a hash-locked requirements file into /opt/venv; runs inside an image build.
#   dependencies.sh REQUIREMENTS [torch-cpu [TORCH_INDEX]]
# Build secrets, both optional and never part of the image: pip.conf (index, proxy) and ca.pem (certificates).
# torch-cpu: leave the CUDA half of torch out (x86-64 only). From an index that serves CPU wheels its hash is
# not checked: the lock file names the wheel of the public index.
# Where the lock file names Mooncake, Debian's libraries that it loads are installed unless the base has them.
set -eu
umask 022
here=$(dirname "$0")
requirements=$1 torch=${2:-} torch_index=${3:-}
locked=$(mktemp)
cp "$requirements" "$locked"

# Leaves entries out whose name matches $1 and not $2. An entry reaches from its name to the next one.
without() {
    awk -v drop="$1" -v keep="$2" '
        /^[a-z0-9]/ { name = $0; sub(/[ =].*/, "", name); skip = name ~ drop && name !~ keep }
        !skip' "$locked" >"$locked.new"
    mv "$locked.new" "$locked"
}

PIP_CONFIG_FILE=/run/secrets/pip.conf
export PIP_CONFIG_FILE PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
if [ -s /run/secrets/ca.pem ]; then export PIP_CERT=/run/secrets/ca.pem; fi

if [ "$(uname -m)" != x86_64 ]; then torch=; fi # elsewhere: all of the lock file

python3 -m venv /tmp/pip
python3 -m venv --without-pip /opt/venv
packages=$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# Not quiet: how far an image is, is counted from the lines that say what is collected.
install() { /tmp/pip/bin/pip --python /opt/venv/bin/python install --progress-bar off --no-deps --no-compile "$@"; }

if [ "$torch" = torch-cpu ]; then
    # These two are small, and torch calls them on a CPU too: to count devices, and for its profiler.
    without '^(triton|cuda-.*|nvidia-.*)$' '^nvidia-cuda-(runtime|cupti)$'
    if [ -n "$torch_index" ]; then
        version=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' "$locked")
        without '^(torch|nvidia-.*)$' '^$'
        install --index-url "$torch_index" "torch==$version"
    fi
fi
echo "locked distributions: $(grep -c '^[a-z0-9][^ ]*==' "$locked")"
install --require-hashes --requirement "$locked"
if [ -d "$packages/mooncake" ]; then
    # Programs that nothing of ours runs: a third of the package.
    rm "$packages/mooncake/transfer_engine_bench" "$packages/mooncake/mooncake_client"
    if ! ldd "$packages/mooncake/store.so" >/tmp/ldd || grep -q 'not found' /tmp/ldd; then
        apt-get -qq update
        apt-get -qq install --no-install-recommends libcurl4 libibverbs1 libnuma1 >/dev/null
        rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/apt /var/log/dpkg.log
    fi
fi
if [ "$torch" = torch-cpu ]; then
    /opt/venv/bin/python "$here/stub.py" "$packages"
    (cd /tmp && /opt/venv/bin/python -B "$here/smoke.py")
fi

# Our own code lies in a layer above; one line makes the interpreter look there.
echo /opt/epd >"$packages/epd.pth"
echo 'epd:x:65532:65532:EPD:/tmp:/usr/sbin/nologin' >>/etc/passwd
# The root file system is read-only in our pods: byte code must be there, and must not depend on file times.
python3 -m compileall -qq -j 0 --invalidation-mode unchecked-hash "$packages" || true
rm -rf /tmp/* /opt/venv/bin/[Aa]ctivate*
