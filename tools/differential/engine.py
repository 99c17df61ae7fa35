"""Ask SGLang itself whether it would accept a command line. Runs inside the engine's own environment, on a CPU.

The program answers torch's device questions with the facts of one platform, gives SGLang a checkpoint folder that holds
only a config.json, and then runs the engine's own code, unchanged: the parser, the resolution of every value, and the
checks before a launch. `engine.py PLATFORM FD...` serves one lane on each socket that it inherits: a JSON line
``{"argv", "env", "config"}`` in, a JSON line ``{"accepted", "error", "stage", "raised_by", "resolved"}`` out.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

GIB = 1 << 30
CASE_SECONDS = 60


class Platform(NamedTuple):
    """What torch says about the devices of one kind of node."""

    capability: tuple[int, int]
    cuda: str | None
    hip: str | None
    architecture: str
    name: str
    memory_bytes: int


PLATFORMS = {
    "cuda-sm90": Platform((9, 0), "13.0", None, "", "NVIDIA H200", 141 * GIB),
    "cuda-sm100": Platform((10, 0), "13.0", None, "", "NVIDIA B200", 180 * GIB),
    "hip-gfx950": Platform((9, 5), None, "7.2.0", "gfx950", "AMD Instinct MI355X", 288 * GIB),
}
# Imported on the way and never asked for a decision: kernels, and torchvision, which does not load beside this torch.
ABSENT = ("triton", "tvm_ffi", "sgl_kernel", "torchvision", "IPython")
ABSENT_ON = {"cuda": ("flashinfer", "deep_gemm"), "hip": ("aiter",)}
# DeepSeek-V4.1-Flash's config.json, as far as resolution reads it.
CONFIG = json.loads((Path(__file__).parent / "data" / "config.json").read_text(encoding="utf-8"))
_REPORT = """
    disaggregation_mode disaggregation_transfer_backend disaggregation_bootstrap_port disaggregation_decode_extra_slots
    encoder_only language_only language_model_only encoder_transfer_backend attention_backend dsv4_attn_backend
    kv_cache_dtype page_size chunked_prefill_size max_prefill_tokens max_running_requests mem_fraction_static tp_size
    dp_size attn_dp_size attn_cp_size dcp_size pp_size ep_size moe_dense_tp_size moe_a2a_backend moe_runner_backend
    deepep_mode enable_prefill_cp cp_strategy enable_dp_lm_head enable_decoder_swa_bounded_replay
    enable_encoder_swa_bounded_replay disable_radix_cache disable_overlap_schedule enable_mixed_chunk
    enable_hierarchical_cache hicache_mem_layout hicache_io_backend hicache_storage_backend hicache_host_memory_mode
    speculative_algorithm speculative_num_draft_tokens speculative_num_steps speculative_dspark_block_size
    enable_return_hidden_states load_balance_method enable_two_batch_overlap enable_unified_memory
"""
REPORT = _REPORT.split()
# One of each kind: what they import, the lanes have imported before the first fork.
REHEARSALS: tuple[tuple[str, ...], ...] = (
    (),
    ("--disaggregation-mode", "prefill", "--enable-hierarchical-cache", "--speculative-algorithm", "DSPARK"),
    ("--disaggregation-mode", "decode", "--attn-dp-size", "4", "--moe-a2a-backend", "megamoe"),
    ("--disaggregation-ib-device", "none", "--nonsense"),
)
MODEL = ("--model-path", "deepseek-ai/DeepSeek-V4.1-Flash")


class _InertType(type):
    """The type of every stand-in: any attribute of it is another stand-in."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _InertType(name, (_Inert,), {})

    @override
    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


class _Inert(metaclass=_InertType):
    """Stands for anything of a package that needs a GPU; hands a decorated function back as it is."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType):
            return args[0]
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __getattr__(self, name: str) -> Any:
        return getattr(type(self), name)


class _InertModule(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012 - the import system reads it from the module

    @override
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _InertType(name, (_Inert,), {"__module__": self.__name__})


class _InertFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = frozenset(roots)

    @override
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] in self.roots:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    @override
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _InertModule(spec.name)

    @override
    def exec_module(self, module: types.ModuleType) -> None:
        pass


def stand_in(roots: Sequence[str]) -> None:
    """Put inert things in the place of packages. Must run before sglang is imported."""
    importlib.import_module("torch._inductor.select_algorithm")
    # Both libraries note now what is missing, so that neither meets a stand-in later.
    importlib.import_module("transformers.utils.import_utils").is_torchvision_available()
    sys.meta_path.append(_InertFinder(roots))


def pretend(platform: str) -> None:
    """Make torch describe `platform`. Must run before sglang is imported."""
    torch = importlib.import_module("torch")
    stand_in(ABSENT + ABSENT_ON[platform.partition("-")[0]])
    device = PLATFORMS[platform]
    properties = types.SimpleNamespace(
        name=device.name,
        gcnArchName=device.architecture,
        major=device.capability[0],
        minor=device.capability[1],
        total_memory=device.memory_bytes,
        multi_processor_count=132,
        warp_size=64 if device.hip else 32,
    )
    torch.version.cuda, torch.version.hip = device.cuda, device.hip
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 8
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_name = lambda *_, **__: device.name
    torch.cuda.get_device_capability = lambda *_, **__: device.capability
    torch.cuda.get_device_properties = lambda *_, **__: properties
    torch.cuda.mem_get_info = lambda *_, **__: (device.memory_bytes, device.memory_bytes)
    if device.hip:
        # The engine asks rocm-smi otherwise.
        common: Any = importlib.import_module("sglang.srt.utils.common")
        common.get_amdgpu_memory_capacity = lambda: device.memory_bytes / (1 << 20)


def local_model(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Make the model's path relative, so that it can be a folder that we fill.

    Returns:
        The command line, and that path (None when the line names no model).
    """
    out, path = list(argv), None
    for i, argument in enumerate(out):
        flag, equals, value = argument.partition("=")
        # Every unambiguous spelling: the flag has one alias, and no other flag begins like it.
        if flag != "--model" and not (flag.startswith("--model-p") and "--model-path".startswith(flag)):
            continue
        if equals:
            path = value.lstrip("/")
            out[i] = f"{flag}={path}"
        elif i + 1 < len(out):
            path = out[i + 1] = out[i + 1].lstrip("/")
    return out, path


def raised_by(error: BaseException) -> str | None:
    """The innermost function of the engine that an exception passed, as ``module.function``."""
    result = None
    trace = error.__traceback__
    while trace:
        module = str(trace.tb_frame.f_globals.get("__name__"))
        if module.partition(".")[0] == "sglang":
            result = f"{module}.{trace.tb_frame.f_code.co_name}"
        trace = trace.tb_next
    return result


def parse_error(error: BaseException, message: str) -> dict[str, Any]:
    """What the parser refused, by the engine's own value parser where one raised, by argparse otherwise."""
    cause: BaseException | None = error
    where = "argparse"
    while cause:
        result = raised_by(cause)
        if result and not result.endswith(".prepare_server_args"):
            where = result
        cause = cause.__context__
    lines = message.strip().splitlines()
    return {"error": lines[-1] if lines else "the parser ended the program", "raised_by": where}


def ask(argv: Sequence[str]) -> dict[str, Any]:
    """Run the engine's three stages on one command line, the working folder being the model's parent."""
    prepare = importlib.import_module("sglang.srt.server_args").prepare_server_args
    answer: dict[str, Any] = {"accepted": False, "error": None, "stage": "parse", "raised_by": None, "resolved": {}}
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            args = prepare(list(argv))
        answer["stage"] = "resolve"
        args.resolve_once()
        if not args.encoder_only:
            answer["stage"] = "check"
            args.check_server_args()
    except SystemExit as error:
        return answer | parse_error(error, message.getvalue())
    except ImportError as error:
        # This environment lacks something: not a verdict.
        return answer | {"accepted": None, "error": f"{type(error).__name__}: {error}"}
    except Exception as error:  # noqa: BLE001 - whatever the engine raises is its refusal
        return answer | {"error": f"{type(error).__name__}: {error}", "raised_by": raised_by(error)}
    full = args.resolved_dict()
    resolved = {name: full.get(name) for name in REPORT}
    for phase in ("prefill", "decode"):
        graph = full["cuda_graph_config"][phase]
        resolved[f"cuda_graph_{phase}"] = graph["backend"]
        resolved[f"cuda_graph_{phase}_max_bs"] = graph["max_bs"]
    return answer | {"accepted": True, "stage": "done", "resolved": resolved}


def judge(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Answer one case in `folder`, which becomes the working folder."""
    os.environ.update(case.get("env") or {})
    argv, path = local_model(case["argv"])
    os.chdir(folder)
    if path:
        config = {**CONFIG, **(case.get("config") or {})}
        model = folder / path
        model.mkdir(parents=True)
        kept = {key: value for key, value in config.items() if value is not None}
        (model / "config.json").write_text(json.dumps(kept), encoding="utf-8")
    return ask(argv)


def in_child(work: Callable[[], Any]) -> Any:
    """Run `work` in a fork, so that each case meets untouched globals.

    Returns:
        What it returned, through JSON; None when it crashed or took longer than `CASE_SECONDS`.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(CASE_SECONDS)
        try:
            os.close(read)
            with os.fdopen(write, "w", encoding="utf-8") as pipe:
                json.dump(work(), pipe, default=str)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as pipe:
        payload = pipe.read()
    os.waitpid(pid, 0)
    try:
        return json.loads(payload)
    except ValueError:
        return None


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Answer one case in a child of its own."""
    with tempfile.TemporaryDirectory(prefix="engine-") as folder:
        result = in_child(lambda: judge(case, Path(folder)))
    crashed = {"accepted": None, "error": f"no answer within {CASE_SECONDS} s", "stage": "crash"}
    return {"raised_by": None, "resolved": {}, **(result or crashed)}


def preload() -> None:
    """Import what a case needs, so that its fork only has to run it."""

    def imported(argv: Sequence[str]) -> list[str]:
        with tempfile.TemporaryDirectory(prefix="engine-") as folder:
            judge({"argv": [*MODEL, "--tp-size", "4", *argv]}, Path(folder))
        return [name for name in sys.modules if name.partition(".")[0] in {"sglang", "huggingface_hub", "fsspec"}]

    importlib.import_module("sglang.srt.server_args")
    for argv in REHEARSALS:
        for name in in_child(lambda argv=argv: imported(argv)) or ():  # type: ignore[misc]
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def serve(lane: int) -> None:
    """Answer the lines of one socket until its other end is closed."""
    with socket.socket(fileno=lane) as connection, connection.makefile("rw", encoding="utf-8") as lines:
        for line in lines:
            print(json.dumps(answer(json.loads(line))), file=lines, flush=True)


def main() -> None:
    """Serve a platform: one forked process for each lane."""
    platform, *lanes = sys.argv[1:]
    pretend(platform)
    logging.disable(logging.CRITICAL)
    preload()
    children = []
    for lane in lanes:
        pid = os.fork()
        if pid == 0:
            for other in lanes:
                if other != lane:
                    os.close(int(other))
            serve(int(lane))
            os._exit(0)
        children.append(pid)
    for lane in lanes:
        os.close(int(lane))
    for pid in children:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
