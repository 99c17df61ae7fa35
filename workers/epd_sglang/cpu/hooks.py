"""What the engine has only for GPUs, name by name, and what stands in for it on a CPU.

Stand-ins are imported when a hook is applied: by then the engine has loaded torch.
"""

# ruff: noqa: PLC0415  (see above)
from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import override

from epd_sglang.hook import Hook, Target

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_OPS: Final = "sglang.kernels.ops"
_ATTENTION: Final = f"{_OPS}.attention.dsv4"
_BACKEND: Final = "sglang.srt.layers.attention.deepseek_v4_backend"


class Layout(Hook):
    """The caches' format."""

    target = Target("sglang.srt.mem_cache.deepseek_v4_memory_pool", "select_dsv4_kv_layout")
    signature = ()
    reason = "the formats of V4.1 are offered on SM100 and gfx950 only, and others get those of V4"
    source = ("srt/mem_cache/deepseek_v4_memory_pool.py:198", "kernels/ops/attention/dsv4/kv_layout.py:22")

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[[], tuple[Any, None]]:
        layout = module.KVLayout.V41
        return lambda: (layout, None)


class StoreLatents(Hook):
    """The store of latents that are normed already."""

    target = Target(f"{_ATTENTION}.attn", "fused_store_cache")
    signature = ("input", "cache", "indices", "page_size", "type", "layout", "freqs_cis")
    reason = "a CUDA kernel"
    source = ("kernels/ops/attention/dsv4/attn.py:70",)

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., None]:
        from epd_sglang.cpu.leaves.stores import fused_store_cache

        parse = module.KVLayout.parse

        def store(
            input: Any,
            cache: Any,
            indices: Any,
            *,
            page_size: int,
            type: str,
            layout: Any = "v4",
            freqs_cis: Any = None,
        ) -> None:
            if type != "flashmla":
                raise NotImplementedError(f"on a CPU only latents are stored this way, not {type!r}")
            fused_store_cache(parse, input, cache, indices, page_size=page_size, layout=layout, freqs_cis=freqs_cis)

        return store


class NormRopeStore(Hook):
    """Norm, rotation and store of latents."""

    target = Target(f"{_ATTENTION}.norm_rope", "fused_k_norm_rope_flashmla")
    signature = (
        "kv", "kv_weight", "eps", "freqs_cis", "positions", "out_loc", "kvcache", "page_size", "layout", "q",
    )  # fmt: skip
    reason = "a CUDA kernel"
    source = ("kernels/ops/attention/dsv4/norm_rope.py:304",)

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., None]:
        from epd_sglang.cpu.leaves.stores import norm_rope_store

        parse = module.KVLayout.parse

        def store(
            kv: Any, kv_weight: Any, eps: float, freqs_cis: Any, positions: Any, out_loc: Any, kvcache: Any,
            page_size: int, layout: Any = "v4", q: Any = None,
        ) -> None:  # fmt: skip
            if q is not None:
                raise NotImplementedError("queries are rotated with this store on ROCm only")
            norm_rope_store(parse, kv, kv_weight, eps, freqs_cis, positions, out_loc, kvcache, page_size, layout)

        return store


class Rope(Hook):
    """Rotation of queries and keys."""

    target = Target(f"{_ATTENTION}.norm_rope", "fused_rope_inplace")
    signature = ("q", "k", "freqs_cis", "positions", "inverse")
    reason = "a CUDA kernel"
    source = ("kernels/ops/attention/dsv4/norm_rope.py:142",)

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., None]:
        from epd_sglang.cpu.leaves.stores import rope_inplace

        def rope(q: Any, k: Any, freqs_cis: Any, positions: Any, inverse: bool = False) -> None:
            rope_inplace(q, k, freqs_cis, positions, inverse)

        return rope


class NormRope(Hook):
    """Norm and rotation of compressed latents."""

    target = Target(f"{_ATTENTION}.norm_rope", "fused_norm_rope_inplace")
    signature = ("kv", "weight", "eps", "freq_cis", "positions")
    reason = "a CUDA kernel"
    source = ("kernels/ops/attention/dsv4/norm_rope.py:173",)

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., None]:
        from epd_sglang.cpu.leaves.stores import norm_rope_inplace

        def norm_rope(kv: Any, weight: Any, eps: float, freq_cis: Any, positions: Any) -> None:
            norm_rope_inplace(kv, weight, eps, freq_cis, positions)

        return norm_rope


class StoreIndexKeys(Hook):
    """The store of index keys."""

    target = Target(f"{_OPS}.kvcache.dsv4_fp4_index_k_cache", "store_fp4_index_k_cache")
    signature = ("input", "cache", "loc", "page_size", "rne")
    reason = "a Triton kernel"
    source = ("kernels/ops/kvcache/dsv4_fp4_index_k_cache.py:41",)

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., None]:
        from epd_sglang.cpu.leaves.stores import store_index_keys

        def store(input: Any, cache: Any, loc: Any, *, page_size: int, rne: bool = False) -> None:
            # Rounding is to even here; the engine rounds otherwise only for models other than V4.1.
            store_index_keys(input, cache, loc, page_size=page_size)

        return store


class IndexLogits(Hook):
    """Scores of index keys in decode steps."""

    target = Target(f"{_ATTENTION}.fp4_indexer", "fp4_index_logits_decode")
    signature = ("q", "weights", "slots", "lens", "table", "page_size")
    reason = "a Triton kernel"
    source = ("kernels/ops/attention/dsv4/fp4_indexer.py:490",)

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., Any]:
        from epd_sglang.cpu.leaves.attention import fp4_index_logits_decode

        return fp4_index_logits_decode


class Sinkhorn(Hook):
    """Weights of the residual streams."""

    target = Target(f"{_OPS}.layernorm.mhc", "hc_split_sinkhorn")
    signature = ("mixes", "hc_scale", "hc_base", "hc_mult", "sinkhorn_iters", "eps")
    reason = "a TileLang kernel"
    source = ("kernels/ops/layernorm/mhc.py:427",)

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., Any]:
        from epd_sglang.cpu.leaves.streams import hc_split_sinkhorn

        return hc_split_sinkhorn


class Combine(Hook):
    """The weighted sum of the residual streams."""

    target = Target(f"{_OPS}.layernorm.mhc", "mhc_combine")
    signature = ("x_flat", "pre", "hc", "out_dtype")
    reason = "a Triton kernel"
    source = ("kernels/ops/layernorm/mhc.py:2743",)

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., Any]:
        from epd_sglang.cpu.leaves.streams import mhc_combine

        return mhc_combine


class Activation(Hook):
    """The experts' activation."""

    target = Target(f"{_OPS}.activation.silu_and_mul_clamp", "silu_and_mul_clamp")
    signature = ("input", "output", "swiglu_limit")
    reason = "a CUDA kernel"
    source = ("kernels/ops/activation/silu_and_mul_clamp.py:56",)

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., None]:
        from epd_sglang.cpu.leaves.streams import silu_and_mul_clamp

        return silu_and_mul_clamp


class CopyWindowRows(Hook):
    """Rows of request windows from cache to cache."""

    target = Target(f"{_OPS}.kvcache.dsv4_request_window_copy", "copy_packed_rows")
    signature = ("src", "dst", "src_loc", "dst_loc", "page_size", "layout")
    reason = "a Triton kernel"
    source = ("kernels/ops/kvcache/dsv4_request_window_copy.py:58",)

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., None]:
        from epd_sglang.cpu.leaves.stores import copy_packed_rows

        return copy_packed_rows


class CommitWindowRows(Hook):
    """Rows of a step into the rings of their requests."""

    target = Target(f"{_OPS}.kvcache.dsv4_request_window_copy", "commit_packed_rows")
    signature = ("src", "dst", "tags", "window", "page_size", "capacity", "layout")
    reason = "a Triton kernel"
    source = ("kernels/ops/kvcache/dsv4_request_window_copy.py:120",)

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., None]:
        from epd_sglang.cpu.leaves.stores import commit_packed_rows

        return commit_packed_rows


class FlashMlaMetadata(Hook):
    """FlashMLA's plan of a launch."""

    target = Target(_BACKEND, "_create_flashmla_metadata")
    signature = ()
    reason = "there is no launch to plan"
    source = ("srt/layers/attention/deepseek_v4_backend.py:210",)

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[[], None]:
        return lambda: None


class FlashMla(Hook):
    """The attention itself, which the engine's back end takes from FlashMLA on CUDA only."""

    target = Target(_BACKEND, "DeepseekV4AttnBackend.__init__")
    reason = "FlashMLA is a CUDA kernel, and without CUDA the back end has no attention at all"
    source = ("srt/layers/attention/deepseek_v4_backend.py:1262", "srt/layers/attention/deepseek_v4_backend.py:4366")

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., None]:
        from epd_sglang.cpu.leaves.attention import NEVER_SPLIT, flash_mla_with_kvcache

        @functools.wraps(stock)
        def start(backend: Any, *args: Any, **kwargs: Any) -> None:
            stock(backend, *args, **kwargs)
            backend._swa_interleaved = False
            backend._flash_mla_with_kvcache = flash_mla_with_kvcache
            backend._flashmla_split_kv_min_topk = NEVER_SPLIT

        return start


class MoveToDevice(Hook):
    """Lengths of requests as a tensor."""

    target = Target(_BACKEND, "DeepseekV4AttnBackend._move_to_device")
    signature = ("self", "x")
    reason = "memory is pinned for CUDA"
    source = ("srt/layers/attention/deepseek_v4_backend.py:1381",)

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., Any]:
        torch = module.torch

        def move(_: Any, x: list[int]) -> Any:
            return torch.tensor(x, dtype=torch.int32)

        return move


class RotaryEmbedding(Hook):
    """An embedding that the model makes and does not use: it rotates by its own table."""

    target = Target("sglang.srt.models.deepseek_v4", "get_rope_wrapper")
    reason = "the one for CPUs refuses layers without YaRN"
    source = ("srt/models/deepseek_v4.py:1395", "srt/layers/rotary_embedding/factory.py:478")

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., Any]:
        from torch.nn import Identity

        return lambda **_: Identity()


class ThreadBinding(Hook):
    """The binding of OpenMP's threads to cores."""

    target = Target("sglang.srt.utils.numa_utils", "init_threads_binding")
    signature = ("numa_index", "world_size")
    reason = "a pod's cores are given by its cgroup, and the engine would bind its threads to cores that it lacks"
    source = ("srt/utils/numa_utils.py:454", "srt/distributed/bootstrap.py:84")

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., Any]:
        import os

        def bind(*, numa_index: int, world_size: int) -> list[int]:
            return sorted(os.sched_getaffinity(0))

        return bind


class Platform(Hook):
    """What the checks of V4.1's features take the hardware for."""

    target = Target("sglang.srt.arg_groups.deepseek_v4_hook", "get_platform")
    reason = "bounded replay is allowed on CUDA only, and its leaves are here"
    source: ClassVar[tuple[str, ...]] = (
        "srt/arg_groups/deepseek_v4_hook.py:296",
        "srt/arg_groups/deepseek_v4_hook.py:418",
    )

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[[], Any]:
        return lambda: _AsCuda(stock())


class BatchPlatform(Platform):
    """The same, where a batch is put together."""

    target = Target("sglang.srt.managers.schedule_batch", "get_platform")
    reason = "replay before pictures is allowed on CUDA only, and the one request that has both would end the server"
    source = ("srt/managers/schedule_batch.py:2894",)


class _AsCuda:
    """A platform that says that it is CUDA; everything else is asked of the real one."""

    is_cuda = True

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class HostIndices(Hook):
    """How Mooncake's sender wants the numbers of pages."""

    target = Target("sglang.srt.disaggregation.mooncake.conn", "MooncakeKVSender.supports_host_tensor_indices")
    reason = "the numbers would be copied into pinned memory behind a CUDA event"
    source = ("srt/disaggregation/mooncake/conn.py:3312", "srt/disaggregation/prefill.py:1746")

    @override
    def replacement(self, module: ModuleType, stock: Any) -> bool:
        return False


class EarlySend(Hook):
    """The send of a cached prefix before the rest of the prompt has run."""

    target = Target(
        "sglang.srt.disaggregation.prefill", "SchedulerDisaggregationPrefillMixin.maybe_send_cached_prefix_chunk"
    )
    signature = ("self", "req", "allow_send")
    reason = "under overlap scheduling it waits for a CUDA event; on a CPU a step has written its pages when it returns"
    source = ("srt/disaggregation/prefill.py:1460", "srt/disaggregation/prefill.py:1495")

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., None]:
        def send(scheduler: Any, req: Any, allow_send: bool = True) -> None:
            overlap, scheduler.enable_overlap = scheduler.enable_overlap, False
            try:
                stock(scheduler, req, allow_send)
            finally:
                scheduler.enable_overlap = overlap

        return send


class Unquantised(Hook):
    """How the model is built."""

    target = Target("sglang.srt.model_loader.loader", "_get_quantization_config")
    signature = ("model_config", "load_config")
    reason = "FP8 and MXFP4 layers compute on GPUs only; weights are made wide as they are loaded"
    source = ("srt/model_loader/loader.py:174",)

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., None]:
        return lambda *_: None


class WideWeights(Hook):
    """What the loader gives the model."""

    target = Target("sglang.srt.models.deepseek_v4", "DeepseekV4ForCausalLM.load_weights")
    signature = ("self", "weights", "is_nextn")
    reason = "the model was built without quantisation"
    source = ("srt/models/deepseek_v4.py:5251",)

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., Any]:
        from epd_sglang.cpu.leaves.weights import wide

        @functools.wraps(stock)
        def load(model: Any, weights: Any, is_nextn: bool = False) -> Any:
            return stock(model, wide(weights), is_nextn=is_nextn)

        return load


HOOKS: Final[tuple[Hook, ...]] = (
    Layout(), StoreLatents(), NormRopeStore(), Rope(), NormRope(), StoreIndexKeys(), IndexLogits(), Sinkhorn(),
    Combine(), Activation(), CopyWindowRows(), CommitWindowRows(), FlashMlaMetadata(), FlashMla(), MoveToDevice(),
    RotaryEmbedding(), ThreadBinding(), Platform(), BatchPlatform(), HostIndices(), EarlySend(), Unquantised(),
    WideWeights(),
)  # fmt: skip
