"""Vision tower, aligner and the three learned rows of DeepSeek-V4.1, without the language model.

Everything that computes is the engine's: tower, aligner, the making of spans, and the cutting of pictures into patches.
Sources: SGLang 0.5.23, srt/models/deepseek_v4.py (`get_image_feature`), srt/disaggregation/encoder/server.py and
preprocessor.py (what a server asks of its model).
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem
from sglang.srt.model_loader.loader import DefaultModelLoader
from sglang.srt.model_loader.weight_utils import default_weight_loader
from sglang.srt.models.deepseek_v4 import DeepseekV4ForCausalLM as Stock
from sglang.srt.models.deepseek_v41_vit import Aligner, ViT
from sglang.srt.multimodal import deepseek_v41_image_processing as processing
from sglang.srt.multimodal.encoder_preprocessing import EncoderMediaProcessorConfig, EncoderPreprocessOutput
from sglang.srt.runtime_context import get_model
from sglang.srt.rust_extensions import load_rust_extension
from torch import Tensor, nn

from epd_sglang.encode import checkpoint
from epd_sglang.encode.grid import Grid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    _Patchify = Callable[..., tuple[Any, int, int, int, int]]


class DeepseekV4ForCausalLM(nn.Module):
    """What an encoder server builds where a language server builds the whole model; the registry goes by this name.

    Attributes:
        encoder_media_processor_config: Pictures are cut up beside the server's event loop.
    """

    encoder_media_processor_config = EncoderMediaProcessorConfig(preprocess_off_event_loop=True)

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        # First: the server sends rows in the type of the first parameter, and norms are float32.
        self.image_start, self.image_end, self.image_newline = (nn.Parameter(torch.empty(hidden)) for _ in range(3))
        arguments = SimpleNamespace(**vars(config), dim=hidden)
        self.vision, self.aligner = ViT(arguments), Aligner(arguments)
        self._patchify = _patchify()
        model = get_model()
        self._weights = checkpoint.digest(model.model_path)
        self._read_only(checkpoint.shards(model.model_path), model)

    def _read_only(self, files: Sequence[str], model: Any) -> None:
        """Let the loader open the files that hold our tensors, a hundredth of the checkpoint, and no others.

        It stops at the first pattern that matches something, so each file is a source of its own.
        """
        if not files:
            return
        self.allow_patterns_overrides = [files[0]]
        self.secondary_weights = [
            DefaultModelLoader.Source(model.model_path, model.revision, allow_patterns_overrides=[name])
            for name in files[1:]
        ]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take the vision part of a checkpoint.

        Raises:
            ValueError: A tensor is missing; all of them are named.
        """
        parameters = dict(self.named_parameters())
        missing = set(parameters)
        for name, tensor in weights:
            if name.startswith(checkpoint.VISION):
                own = Stock.remap_weight_name_to_dpsk_hf_format(name)
                getattr(parameters[own], "weight_loader", default_weight_loader)(parameters[own], tensor)
                missing.discard(own)
        if missing:
            raise ValueError(f"the checkpoint lacks the encoder's {', '.join(sorted(missing))}")

    def preprocess_mm_for_encoder(
        self, images: Sequence[Any], modality: Modality, config: Any, *, use_gpu_preprocessing: bool = False
    ) -> EncoderPreprocessOutput:
        """Cut pictures into patches, and describe each by a row of the wire format.

        Raises:
            NotImplementedError: The model sees pictures only.
        """
        if modality is not Modality.IMAGE:
            raise NotImplementedError(f"DeepSeek-V4.1 encodes pictures only, not {modality.name.lower()}")
        items, rows = [], []
        for image in images:
            item, high, wide = self._item(image, on_gpu=use_gpu_preprocessing)
            item.set_pad_value()
            items.append(item)
            rows.append(Grid(high, wide, item.hash, self._weights).row())
        values = {"pixel_values": [item.feature for item in items], "image_grid_thw": torch.tensor(rows)}
        return EncoderPreprocessOutput(values, mm_items=items)

    def _item(self, image: Any, *, on_gpu: bool) -> tuple[MultimodalDataItem, int, int]:
        """A picture as the engine's item, and its height and width in patches."""
        extra: dict[str, Any] = {}
        if on_gpu:
            patches, plan, _, _ = processing.prepare_image_gpu(image, self.config)
            high, wide = plan["height"] // plan["patch_size"], plan["width"] // plan["patch_size"]
            extra[processing.GPU_PLAN_KEY] = plan
        else:
            patches, high, wide, _, _ = self._patchify(image, self.config)
        data = {"n_vit_h": high, "n_vit_w": wide, **extra}
        return MultimodalDataItem(modality=Modality.IMAGE, feature=patches, model_specific_data=data), high, wide

    def get_image_feature(self, items: Sequence[MultimodalDataItem]) -> Tensor:
        """Spans of pictures, one behind the other, [rows, hidden]."""
        return torch.cat(Stock.get_image_feature(self, items))


def _patchify() -> _Patchify:
    """The engine's fastest way on a CPU, with the same bits as its slower one."""
    try:
        fast = load_rust_extension("sglang.srt.rust_extensions._multimodal").dsv41.resize_patchify
    except (ImportError, OSError, RuntimeError, AttributeError):
        slow: _Patchify = processing.patchify_image
        return slow
    return partial(processing.patchify_image_rust, resize_patchify=fast)


EntryClass = DeepseekV4ForCausalLM
