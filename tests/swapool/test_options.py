from __future__ import annotations

import pytest

from epd_workers.swapool.main import main
from epd_workers.swapool.server.options import MasterOptions, StoreOptions, UsageError, ValkeyOptions, parse

MIB64 = str(64 << 20)


def faults(*arguments: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        parse(arguments)
    return list(caught.value.faults)


def test_what_is_not_said_is_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POD_IP", raising=False)
    assert parse(["valkey", "--memory", MIB64]) == ValkeyOptions(64 << 20, 6379, 8088)
    assert parse(["master"]) == MasterOptions(50051, 9003, 8088)
    arguments = ["store", "--master", "pool.space.svc:50051", "--memory", MIB64]
    assert parse(arguments) == StoreOptions("pool.space.svc:50051", 64 << 20, "127.0.0.1", "tcp", "", 8088)
    monkeypatch.setenv("POD_IP", "10.1.2.3")
    assert parse(arguments) == StoreOptions("pool.space.svc:50051", 64 << 20, "10.1.2.3", "tcp", "", 8088)
    assert parse([*arguments, "--hostname", "10.9.9.9", "--protocol", "rdma", "--devices", "mlx5_0,mlx5_1"]) == (
        StoreOptions("pool.space.svc:50051", 64 << 20, "10.9.9.9", "rdma", "mlx5_0,mlx5_1", 8088)
    )


def test_all_faults_at_once() -> None:
    assert faults(
        "store", "--master", "host", "--memory", "1Gi", "--protocol", "udp", "--health-port", "0", "more"
    ) == [
        "unknown argument 'more'",
        "--health-port 0: it must be a port, 1 to 65535",
        "--master host: it must be HOST:PORT",
        "--memory 1Gi: it must be a whole number of bytes, at least 16777216 (16 MiB)",
        "--protocol udp: it must be tcp or rdma",
    ]
    assert faults("store") == [
        "--master is missing: give the master's HOST:PORT",
        "--memory is missing: give the bytes that the pool may hold here",
    ]


@pytest.mark.parametrize("port", ["0", "65536", "-1", "x", "", "1.5", "²"])
def test_no_port(port: str) -> None:
    assert faults("master", f"--port={port}") == [f"--port {port}: it must be a port, 1 to 65535"]


@pytest.mark.parametrize("memory", ["0", "16777215", "-67108864", "1e9", "64Mi", "²"])
def test_no_memory(memory: str) -> None:
    assert faults("valkey", f"--memory={memory}")[0].startswith(f"--memory {memory}: it must be a whole number")


def test_one_port_has_one_purpose() -> None:
    assert faults("master", "--port", "8088") == ["one port for two purposes (8088, 9003, 8088): give each its own"]


def test_no_program() -> None:
    assert faults() == ["the program is missing: give valkey, master or store"]
    assert "invalid choice: 'redis'" in faults("redis")[0]


def test_usage_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["valkey", "--port", "x"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "epd-swapool: --memory is missing: give the bytes that the pool may hold here",
        "epd-swapool: --port x: it must be a port, 1 to 65535",
        "epd-swapool: see epd-swapool --help",
    ]


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ((), ["valkey", "master", "store", "/health", "/live", "/metrics", "SIGTERM"]),
        (("store",), ["MC_MIN_RPC_PORT", "POD_IP", "--master", "--memory", "--health-port"]),
    ],
)
def test_help_says_what_one_needs(
    arguments: tuple[str, ...], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*arguments, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(word in text for word in lines)
