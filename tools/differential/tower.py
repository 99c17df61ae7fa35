"""Run SGLang's own vision code on a CPU: planner, weight loader, tower, aligner and span. For the engine's environment.

`python -m tools.differential.tower FOLDER` reads ``request.json``, ``{"released", "stored", "plans", "cases"}``, and
writes ``reply.json`` and, for each case, ``NAME.out.safetensors`` with what the engine makes of ``NAME.json`` (a
config.json), ``NAME.safetensors`` (weights under their released names) and ``NAME.png``. The engine's files run
unchanged; stand-ins take the place of kernel packages, which none of this calls, and of the language model around it.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import types
from pathlib import Path
from typing import Any

from tools.differential.engine import ABSENT, ABSENT_ON, _InertFinder


def prepare() -> None:
    """Make sglang importable."""
    importlib.import_module("torch._inductor.select_algorithm")
    importlib.import_module("transformers.utils.import_utils").is_torchvision_available()
    sys.meta_path.append(_InertFinder(ABSENT + ABSENT_ON["cuda"]))
    logging.disable(logging.CRITICAL)


def configured(config: dict[str, Any]) -> Any:
    """The engine's own reading of a config.json, on which it hangs flat names."""
    return importlib.import_module("sglang.srt.configs.deepseek_v41").DeepseekV41Config(**config)


def model(config: Any) -> Any:
    """The engine's model class with its vision parts alone."""
    torch = importlib.import_module("torch")
    whole = importlib.import_module("sglang.srt.models.deepseek_v4")
    tower = importlib.import_module("sglang.srt.models.deepseek_v41_vit")

    class Seeing(whole.DeepseekV4ForCausalLM):  # type: ignore[misc, name-defined] # the engine's class, of no known type
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.config = config
            self.quant_config, self.wo_a_fp8, self.num_fused_shared_experts = None, False, 0
            self.pp_group = types.SimpleNamespace(is_first_rank=True, is_last_rank=True)
            self.model = types.SimpleNamespace(layers=[])
            args = types.SimpleNamespace(**vars(config), dim=config.hidden_size)
            self.vision = tower.ViT(args)
            self.aligner = tower.Aligner(args)
            for name in ("image_start", "image_newline", "image_end"):
                setattr(self, name, torch.nn.Parameter(torch.full((config.hidden_size,), float("nan"))))

        def post_load_weights(self, **_: Any) -> None:
            pass

        def _prewarm_mhc_kernels(self) -> None:
            pass

    return Seeing()


def names(config: dict[str, Any]) -> dict[str, list[int]]:
    """Name and shape of every vision parameter that the engine makes for a config.json."""
    torch = importlib.import_module("torch")
    with torch.device("meta"):
        made = model(configured(config))
    return {name: list(parameter.shape) for name, parameter in made.named_parameters()}


def renamed(stored: list[str]) -> dict[str, str]:
    """What the engine's loader calls tensors of a checkpoint."""
    rename = importlib.import_module("sglang.srt.models.deepseek_v4").DeepseekV4ForCausalLM
    return {name: rename.remap_weight_name_to_dpsk_hf_format(name) for name in stored}


def planned(row: dict[str, Any]) -> list[int]:
    """Patches high and wide, cells high and wide, of a picture's size."""
    images = importlib.import_module("sglang.srt.multimodal.deepseek_v41_image_processing")
    translate = importlib.import_module("sglang.srt.configs.deepseek_v41").normalize_deepseek_v41_config
    args = types.SimpleNamespace(**translate({"vision_config": row["vision"]}))
    lines, columns, height, width = images.plan_image_grid(row["width"], row["height"], args)
    return [height // args.vision_patch_size, width // args.vision_patch_size, lines, columns]


def see(folder: Path, name: str) -> None:
    """Load weights, encode a picture."""
    torch = importlib.import_module("torch")
    tensors = importlib.import_module("safetensors.torch")
    images = importlib.import_module("sglang.srt.multimodal.deepseek_v41_image_processing")
    pillow = importlib.import_module("PIL.Image")
    config = configured(json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))
    made = model(config)
    made.load_weights(tensors.load_file(folder / f"{name}.safetensors").items())
    patches, high, wide, _, _ = images.patchify_image(pillow.open(folder / f"{name}.png"), config)
    item = types.SimpleNamespace(
        reconstruct=lambda _: None, n_vit_h=high, n_vit_w=wide, feature=patches, model_specific_data={}
    )
    with torch.inference_mode():
        (span,) = made.get_image_feature([item])
    tensors.save_file({"patches": patches.contiguous(), "span": span}, folder / f"{name}.out.safetensors")


def main() -> None:
    """Answer one folder."""
    prepare()
    context = importlib.import_module("sglang.srt.runtime_context")
    folder = Path(sys.argv[1])
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    alone = types.SimpleNamespace(world_size=1)
    with (
        context.get_context().override_server_args(mm_attention_backend="sdpa"),
        context.get_parallel().override(tp_group=alone),
    ):
        reply = {
            "names": names(request["released"]),
            "renamed": renamed(request["stored"]),
            "plans": [planned(row) for row in request["plans"]],
        }
        for name in request["cases"]:
            see(folder, name)
    (folder / "reply.json").write_text(json.dumps(reply), encoding="utf-8")


if __name__ == "__main__":
    main()
