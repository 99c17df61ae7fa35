"""The encode tier's changes to the engine, name by name. Each asks for the server's role when it runs."""

# ruff: noqa: PLC0415  (what a replacement needs of the engine is there when it is made, and not to be loaded before)
from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from epd_sglang.encode.gate import MODEL_TYPE
from epd_sglang.hook import Hook, Target

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_MODEL: Final = "sglang.srt.models.deepseek_v4"
_PROCESSOR: Final = "sglang.srt.multimodal.processors.deepseek_v41"


def _disaggregation() -> Any:
    from sglang.srt.runtime_context import get_disagg

    return get_disagg()


def _decodes() -> bool:
    return bool(_disaggregation().disaggregation_mode == "decode")


def _without_tower() -> bool:
    return bool(_disaggregation().language_only) or _decodes()


class SpanLength(Hook):
    """Tokens of a picture, on the encoder."""

    target = Target("sglang.srt.disaggregation.encoder.preprocessor", "EncoderPreprocessor.get_num_tokens")
    signature = ("self", "grid", "modality")
    reason = "a span of V4.1 has newlines and delimiters, and cells of three patches a side"
    source = ("srt/disaggregation/encoder/preprocessor.py:934", "srt/disaggregation/encoder/server.py:630")

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., int]:
        from epd_sglang.encode.grid import Grid

        def length(preprocessor: Any, grid: Any, modality: Any) -> int:
            if preprocessor.model_type != MODEL_TYPE:
                return int(stock(preprocessor, grid, modality))
            ratio = preprocessor.model_config.hf_config.vision_downsample_ratio
            return Grid.read([int(value) for value in grid]).tokens(ratio)

        return length


class PlaceSpans(Hook):
    """The placing of an encoder's rows in a prompt."""

    target = Target(_PROCESSOR, "DeepseekV41ImageProcessor.get_mm_data")
    reason = "the general one wants marks around pictures that V4.1 has not"
    source = ("srt/multimodal/processors/base_processor.py:653", "srt/disaggregation/encoder/receiver.py:2054")
    adds = True

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., Any]:
        from epd_sglang.encode import checkpoint
        from epd_sglang.encode.language import mm_data

        @functools.cache
        def weights(model_path: str) -> int:
            return checkpoint.digest(model_path)

        def place(processor: Any, prompt: Any, embeddings: Any, *, img_grid_thw: Any = None, **_: Any) -> Any:
            from sglang.srt.runtime_context import get_model

            return mm_data(processor, prompt, embeddings, img_grid_thw, weights(get_model().model_path))

        return place


class PlanOnly(Hook):
    """The cutting of pictures into patches, on decode."""

    target = Target(_PROCESSOR, "DeepseekV41ImageProcessor.__init__")
    reason = "decode needs the length of a span alone, and would resize every picture for it"
    source = ("srt/multimodal/processors/deepseek_v41.py:41",)

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., None]:
        from epd_sglang.encode.language import plan_only

        @functools.wraps(stock)
        def start(processor: Any, *args: Any, **kwargs: Any) -> None:
            stock(processor, *args, **kwargs)
            if _decodes():
                processor.preprocess_backend, processor.cpu_patchify = "cpu", plan_only

        return start


class _NoModule(Hook):
    """A part of the tower that a server without one does not build."""

    reason = "485 million parameters a GPU, which a server without pictures of its own never calls"
    source = ("srt/models/deepseek_v4.py:4696",)

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[[Any], Any]:
        def build(args: Any) -> Any:
            if not _without_tower():
                return stock(args)
            from epd_sglang.encode.language import NoTower

            return NoTower()

        return build


class NoVision(_NoModule):
    """The vision tower."""

    target = Target(_MODEL, "ViT")


class NoAligner(_NoModule):
    """The aligner."""

    target = Target(_MODEL, "Aligner")


class SkipTower(Hook):
    """The weights of the tower."""

    target = Target(_MODEL, "DeepseekV4ForCausalLM.load_weights")
    signature = ("self", "weights", "is_nextn")
    reason = "a server without a tower has nowhere to put them"
    source = ("srt/models/deepseek_v4.py:5251",)

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., Any]:
        @functools.wraps(stock)
        def load(model: Any, weights: Any, is_nextn: bool = False) -> Any:
            from epd_sglang.encode.language import NoTower

            if isinstance(getattr(model, "vision", None), NoTower):
                weights = (pair for pair in weights if not pair[0].startswith(("vision.", "aligner.")))
            return stock(model, weights, is_nextn=is_nextn)

        return load


class EncoderNeeded(Hook):
    """The dispatch of a request's pictures."""

    target = Target(
        "sglang.srt.managers.tokenizer_manager", "TokenizerManager._handle_epd_disaggregation_encode_request"
    )
    signature = ("self", "obj")
    reason = "without an encoder the engine goes on with a tower that is not here"
    source = ("srt/managers/tokenizer_manager.py:3910",)

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., None]:
        import fastapi

        from epd_sglang.encode.language import UNAVAILABLE

        def dispatch(manager: Any, obj: Any) -> None:
            stock(manager, obj)
            if (
                isinstance(obj, module.GenerateReqInput)
                and obj.contains_mm_input()
                and manager.model_config.hf_config.model_type == MODEL_TYPE
                and not (obj.need_wait_for_mm_inputs and manager.mm_receiver.encode_urls)
            ):
                raise fastapi.HTTPException(UNAVAILABLE, "No vision encoder is registered with this server.")

        return dispatch


class EncoderStatus(Hook):
    """The status of a request whose picture an encoder refuses."""

    target = Target("sglang.srt.disaggregation.encoder.receiver", "MMReceiverHTTP.recv_mm_data")
    reason = "every failure becomes a 503, which a router repeats until its breaker opens"
    source = ("srt/disaggregation/encoder/receiver.py:2054",)
    adds = True

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., Any]:
        from epd_sglang.encode.language import received

        @functools.wraps(stock)
        async def receive(receiver: Any, *args: Any, **kwargs: Any) -> Any:
            return await received(receiver, stock, *args, **kwargs)

        return receive


class RowsNeeded(Hook):
    """What the scheduler takes of a request's pictures."""

    target = Target("sglang.srt.managers.scheduler", "Scheduler._get_multimodal_inputs")
    signature = ("self", "mm_inputs")
    reason = "a picture without rows would call the tower that is not here, and end the server"
    source = ("srt/managers/scheduler.py:2836", "srt/managers/scheduler.py:3201")

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., Any]:
        def get(scheduler: Any, mm_inputs: Any) -> Any:
            items = getattr(mm_inputs, "mm_items", None) or ()
            if _disaggregation().language_only and any(
                getattr(item, "precomputed_embeddings", None) is None for item in items
            ):
                mm_inputs = module.MMInputsProcessError("plugin epd: a picture came without an encoder's rows")
            return stock(scheduler, mm_inputs)

        return get


HOOKS: Final[tuple[Hook, ...]] = (
    SpanLength(), PlaceSpans(), PlanOnly(), NoVision(), NoAligner(), SkipTower(), EncoderNeeded(), EncoderStatus(),
    RowsNeeded(),
)  # fmt: skip
