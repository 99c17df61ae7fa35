"""What a language server does with pictures that encoders encode; imported when the engine's modules are there."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any

import fastapi
import torch
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem, MultimodalProcessorOutput
from sglang.srt.multimodal.deepseek_v41_image_processing import plan_image_grid, to_rgb
from torch import Tensor, nn
from typing_extensions import override

from epd_sglang.encode.grid import Grid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BAD_GATEWAY = 502
UNAVAILABLE = 503
_STATUS_SECONDS = 5.0
"""How long an encoder's answer may take behind its message that there will be no rows."""


def spans(
    ids: Sequence[int], grids: Sequence[Grid], rows: Tensor, *, image_id: int, ratio: int
) -> tuple[list[int], list[tuple[Grid, int, Tensor]]]:
    """Put each picture's span in the place of its mark.

    Args:
        ids: The prompt, one mark a picture.
        grids: Of the pictures, in the prompt's order.
        rows: Their spans, one behind the other.
        image_id: The mark, and what every token of a span is.
        ratio: Patches a side of a cell.

    Returns:
        The longer prompt, and for each picture its grid, where its span begins, and its rows.

    Raises:
        ValueError: There are more marks than pictures, or fewer.
    """
    if ids.count(image_id) != len(grids):
        raise ValueError(f"the prompt has {ids.count(image_id)} places for pictures, and {len(grids)} came")
    tokens: list[int] = []
    placed = []
    waiting, used = iter(grids), 0
    for token in ids:
        if token != image_id:
            tokens.append(token)
            continue
        grid = next(waiting)
        length = grid.tokens(ratio)
        placed.append((grid, len(tokens), rows[used : used + length]))
        tokens += [image_id] * length
        used += length
    return tokens, placed


def mm_data(
    processor: Any, prompt: Any, embeddings: Mapping[Modality, Tensor], rows: Tensor | None, weights: int
) -> MultimodalProcessorOutput:
    """What the engine's processor makes of pictures, made of their rows.

    Raises:
        fastapi.HTTPException: 502, an encoder has other weights than this server.
        ValueError: Marks and pictures do not match.
    """
    ids = prompt if isinstance(prompt, list) else processor._processor.encode(prompt)
    grids = [Grid.read(row) for row in ([] if rows is None else rows.tolist())]
    if any(grid.weights != weights for grid in grids):
        raise fastapi.HTTPException(
            BAD_GATEWAY, "A vision encoder serves other weights, or another version of the plugin, than this server."
        )
    image_id = processor.image_token_id
    tokens, placed = spans(
        ids, grids, embeddings[Modality.IMAGE], image_id=image_id, ratio=processor.hf_config.vision_downsample_ratio
    )
    items = [
        MultimodalDataItem(
            modality=Modality.IMAGE,
            hash=grid.identity,
            offsets=[(start, start + len(own) - 1)],
            precomputed_embeddings=own,
        )
        for grid, start, own in placed
    ]
    return MultimodalProcessorOutput(input_ids=tokens, mm_items=items, im_token_id=image_id)


def plan_only(image: Any, args: Any) -> tuple[Tensor, int, int, int, int]:
    """What decode needs of a picture: the length of its span and an identity, not its pixels.

    Returns:
        32 bytes in the place of patches, height and width in patches, and in cells.
    """
    image, patch = to_rgb(image), args.vision_patch_size
    lines, columns, height, width = plan_image_grid(image.width, image.height, args)
    identity = hashlib.sha256(b"%dx%d" % image.size + image.tobytes()).digest()
    return torch.frombuffer(bytearray(identity), dtype=torch.uint8), height // patch, width // patch, lines, columns


class NoTower(nn.Module):
    """Stands where the tower would: it keeps the model's handling of pictures on, and has no weights."""

    @override
    def forward(self, *_: Any, **__: Any) -> Any:
        """Refuse.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError("plugin epd: this server has no vision tower; encoders make the rows of pictures")


async def received(receiver: Any, stock: Any, *args: Any, **kwargs: Any) -> Any:
    """Receive rows; an encoder's 4xx reaches the client as it is, not as a 503 that a router repeats.

    Args:
        receiver: The engine's.
        stock: Its method.
        args: As for `stock`.
        kwargs: As for `stock`.

    Raises:
        fastapi.HTTPException: The encoder refused a picture.
    """
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def encode(*given: Any, **options: Any) -> Any:
        error = None
        try:
            error = await receiver.encode(*given, **options)
        finally:
            if not answer.done():
                answer.set_result(error)
        return error

    async def receive(*given: Any, **options: Any) -> Any:
        rows = await receiver._recv_mm_data(*given, **options)
        if rows is None:  # that there are none can be known before the status that says why
            await asyncio.wait([answer], timeout=_STATUS_SECONDS)
        return rows

    rows = await stock(_Overlaid(receiver, encode=encode, _recv_mm_data=receive), *args, **kwargs)
    error = answer.result() if rows is None and answer.done() else None
    if error is not None and 400 <= (error.error_code or 0) < 500:
        raise fastapi.HTTPException(error.error_code, error.error_msg)
    return rows


class _Overlaid:
    """An object with some methods replaced, for one call of another of its methods."""

    def __init__(self, under: Any, **over: Any) -> None:
        self.__dict__.update(over, _under=under)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_under"], name)
