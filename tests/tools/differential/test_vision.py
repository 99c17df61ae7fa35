"""Our vision path against SGLang's own: its planner, its weight loader, its tower, aligner and span, on a CPU."""

from __future__ import annotations

import json
import os
import random
import subprocess
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from epd_workers.reference.model.config import RELEASED, SHIPPED, Config, VisionConfig
from epd_workers.reference.model.image import MAX_PIXELS, MAX_RATIO, patches, plan
from epd_workers.reference.model.vision import Aligner, Vision, span
from tools.differential import environment

if TYPE_CHECKING:
    from pathlib import Path

MARKS = ("image_start", "image_newline", "image_end")
SIZES = [(1, 1), (1344, 1344), (5000, 5000), (544, 544), (1920, 1080), (1080, 1920), (20000, 100), (100, 20000)]


class Tower(nn.Module):
    """Our vision parts under the names of a checkpoint."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.vision = Vision(config.vision)
        self.aligner = Aligner(config.vision, config.text.hidden_size)
        for name in MARKS:
            self.register_parameter(name, nn.Parameter(torch.randn(config.text.hidden_size)))


@dataclass(frozen=True)
class Case:
    """A model and a picture."""

    config: Config
    tower: Tower
    picture: Image.Image


def drawn_vision(rng: random.Random) -> VisionConfig:
    heads = rng.choice((1, 2, 4))
    return VisionConfig(
        num_hidden_layers=rng.randint(1, 3),
        hidden_size=heads * 4 * rng.randint(1, 6),
        num_attention_heads=heads,
        intermediate_size=rng.randint(3, 50),
        patch_size=rng.randint(2, 16),
        rope_theta=rng.choice((100.0, 10000.0)),
        downsample_ratio=rng.randint(1, 4),
        max_image_tokens=rng.randint(12, 120),
        min_pixels=rng.randint(1, 20000),
        max_wh_ratio=rng.choice((None, 2.0, 3.5)),
    )


def drawn_case(seed: int) -> Case:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    vision = SHIPPED.vision if seed == 0 else drawn_vision(rng)
    config = replace(SHIPPED, vision=vision)
    tower = Tower(config)
    for parameter in tower.parameters():
        nn.init.normal_(parameter, 0.3 if parameter.dim() == 1 else 0, 0.3 if parameter.dim() == 1 else 0.2)
    picture = Image.effect_noise((rng.randint(8, 90), rng.randint(8, 90)), 60)
    return Case(config, tower, Image.merge("RGB", (picture, picture.rotate(90), picture.rotate(180))))


def drawn_plans() -> list[dict[str, Any]]:
    rng = random.Random(1)
    rows = [{"width": w, "height": h, "vision": asdict(RELEASED.vision)} for w, h in SIZES]
    while len(rows) < 6000:
        width, height = (int(10 ** rng.uniform(0, 4.2)) for _ in range(2))
        if width * height > MAX_PIXELS or max(width, height) > MAX_RATIO * min(width, height):
            continue
        vision = RELEASED.vision if len(rows) % 2 else drawn_vision(rng)
        rows.append({"width": width, "height": height, "vision": asdict(vision)})
    return rows


@dataclass(frozen=True)
class Seen:
    """What the engine said."""

    cases: list[Case]
    plans: list[dict[str, Any]]
    reply: dict[str, Any]
    outputs: list[dict[str, Tensor]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder: Path = tmp_path_factory.mktemp("tower")
    cases, plans = [drawn_case(seed) for seed in range(12)], drawn_plans()
    for number, case in enumerate(cases):
        (folder / f"{number}.json").write_text(json.dumps(case.config.to_json()), encoding="utf-8")
        save_file(dict(case.tower.state_dict()), folder / f"{number}.safetensors")
        case.picture.save(folder / f"{number}.png")
    with torch.device("meta"):
        stored = list(Tower(RELEASED).state_dict())
    request = {
        "released": RELEASED.to_json(),
        "stored": stored,
        "plans": plans,
        "cases": [str(number) for number in range(len(cases))],
    }
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    env = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    env |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(environment.ROOT), **environment.CACHES}
    done = subprocess.run(
        [str(environment.interpreter()), "-P", "-m", "tools.differential.tower", str(folder)],
        env=env,
        text=True,
        capture_output=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    reply = json.loads((folder / "reply.json").read_text(encoding="utf-8"))
    return Seen(cases, plans, reply, [load_file(folder / f"{number}.out.safetensors") for number in range(len(cases))])


def test_names_and_shapes_at_released_sizes(seen: Seen) -> None:
    with torch.device("meta"):
        ours = {name: list(parameter.shape) for name, parameter in Tower(RELEASED).named_parameters()}
    assert {seen.reply["renamed"][name]: shape for name, shape in ours.items()} == seen.reply["names"]


def test_plans(seen: Seen) -> None:
    for row, theirs in zip(seen.plans, seen.reply["plans"], strict=True):
        vision = VisionConfig(**row["vision"])
        ours = plan(row["width"], row["height"], vision)
        if 0 not in theirs:  # with a downsample ratio of 1 theirs can plan a picture without any patch
            assert [*ours.grid, *ours.cells] == theirs, row


def test_pixels_are_the_same_bits(seen: Seen) -> None:
    for case, output in zip(seen.cases, seen.outputs, strict=True):
        layout = plan(*case.picture.size, case.config.vision)
        assert torch.equal(patches(case.picture, layout).bfloat16(), output["patches"].flatten(1)), case.config.vision


def test_the_engine_reads_our_weights_and_sees_the_same(seen: Seen) -> None:
    for case, output in zip(seen.cases, seen.outputs, strict=True):
        layout = plan(*case.picture.size, case.config.vision)
        tower = case.tower.double()
        with torch.inference_mode():
            pixels = patches(case.picture, layout).bfloat16().double()[None]
            rows = tower.aligner(tower.vision(pixels, layout.grid), layout.grid)
            ours = span(rows[0], layout.cells, *(tower.get_parameter(name) for name in MARKS))
        assert len(ours) == layout.span
        torch.testing.assert_close(ours.float(), output["span"], rtol=1e-4, atol=1e-4)
