"""How far programs are, counted from what they really print."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools import tally

if TYPE_CHECKING:
    from tools.tally import Tally

APT = """\
Reading package lists...
The following NEW packages will be installed:
  debootstrap libibverbs1
0 upgraded, 2 newly installed, 0 to remove and 66 not upgraded.
Get:1 http://mirror.example.com/debian bookworm/main amd64 debootstrap all 1.0.128 [78.2 kB]
Get:2 http://mirror.example.com/debian bookworm/main amd64 libibverbs1 amd64 44.0-2 [60.4 kB]
Setting up debootstrap (1.0.128+nmu2+deb12u2) ...
Setting up libibverbs1:amd64 (44.0-2) ...
"""
DEBOOTSTRAP = """\
I: Retrieving InRelease
I: Validating Packages
I: Retrieving adduser 3.134
I: Validating adduser 3.134
I: Validating libc6 2.36-9+deb12u10
I: Extracting adduser...
I: Unpacking required packages...
I: Unpacking adduser...
I: Configuring required packages...
I: Configuring libc6:amd64...
I: Unpacking the base system...
I: Configuring adduser...
I: Base system installed successfully.
"""
IMAGE = """\
[1/2] STEP 1/3: FROM localhost/epd-base:990941e52a17 AS dependencies
[1/2] STEP 3/3: RUN sh /build/dependencies.sh /build/operator.txt
locked distributions: 3
Ignoring colorama: markers 'sys_platform == "win32"' don't match your environment
Collecting aiohttp==3.14.0 (from -r /tmp/tmp.x (line 1))
  Downloading aiohttp-3.14.0-cp311-cp311-manylinux.whl (1.7 MB)
Collecting kopf==1.45.0 (from -r /tmp/tmp.x (line 9))
Installing collected packages: aiohttp, kopf
Successfully installed aiohttp-3.14.0 kopf-1.45.0
"""
GO_LIST = "go: downloading k8s.io/api v0.36.3\nk8s.io/api/core/v1:true:build ID mismatch\n"
GO_BUILD = (
    "internal/goarch\ngolang.org/x/sys/unix\n# k8s.io/x\n./a.go:3:4: undefined: y\nk8s.io/kubernetes/cmd/kubelet\n"
)
UV = """\
Using Python 3.11.7 environment at: .venv
Resolved 165 packages in 12ms
Downloading torch (506.1MiB)
Downloading triton (179.3MiB)
 Downloaded triton
 Downloaded torch
Prepared 165 packages in 40.1s
Installed 165 packages in 2.3s
"""


@pytest.mark.parametrize(
    ("counted", "printed", "far"),
    [
        (
            tally.Apt(),
            APT,
            ["1 of 2 packages fetched", "2 of 2 packages fetched", "1 of 2 packages set up", "2 of 2 packages set up"],
        ),
        (
            tally.Debootstrap(),
            DEBOOTSTRAP,
            [
                "1 packages fetched",
                "2 packages fetched",
                "unpacking",
                "unpacking",
                "1 of 2 packages set up",
                "unpacking",
                "2 of 2 packages set up",
            ],
        ),
        (
            tally.Image(),
            IMAGE,
            [
                "step 1 of 3",
                "step 3 of 3",
                "step 3 of 3, 1 of 2 distributions collected",
                "step 3 of 3, 2 of 2 distributions collected",
                "step 3 of 3, installing",
            ],
        ),
        (tally.GoModules(), GO_LIST, ["1 modules downloaded"]),
        (tally.GoBuild(2851), GO_BUILD, ["1 of 2,851 packages", "2 of 2,851 packages", "3 of 2,851 packages"]),
        (
            tally.Uv(),
            UV,
            [
                "165 distributions",
                "165 distributions, downloading torch (506.1MiB)",
                "165 distributions, downloading torch (506.1MiB), triton (179.3MiB)",
                "165 distributions, downloading torch (506.1MiB)",
                "165 distributions",
                "165 distributions ready, installing",
            ],
        ),
    ],
    ids=["apt", "debootstrap", "image", "go list", "go build", "uv"],
)
def test_how_far_is_counted_from_what_is_printed(counted: Tally, printed: str, far: list[str]) -> None:
    assert [message for line in printed.splitlines() if (message := counted.read(line))] == far
