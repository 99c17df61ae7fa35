"""From options to a loaded model and to the settings of engine and transfer; reports everything that does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from epd_kernels import dispatch
from epd_workers.reference.cache.disk.folder import occupied
from epd_workers.reference.cache.disk.page import HEADER
from epd_workers.reference.engine.request import Limits
from epd_workers.reference.model import checkpoint
from epd_workers.reference.model.checkpoint import BadCheckpoint
from epd_workers.reference.model.engram_hash import BadTokenMap
from epd_workers.reference.model.loaded import PACKAGED, LoadedModel
from epd_workers.reference.model.tokenizer import BadTokenizer
from epd_workers.reference.serving.options import PROMPTED, UsageError
from epd_workers.reference.transfer.layout import Layout

if TYPE_CHECKING:
    from epd_kernels.dispatch import Operations
    from epd_workers.reference.engine.engine import Engine
    from epd_workers.reference.serving.options import Options

MAX_LAYOUT = 256


def checkpoint_of(options: Options) -> Path:
    """The directory of the checkpoint, the packaged one if none is named."""
    return PACKAGED if options.model_path is None else Path(options.model_path)


def load(options: Options) -> LoadedModel:
    """Load the checkpoint and check the options against it.

    Raises:
        UsageError: Lists everything that is wrong with the checkpoint, or with options that do not suit it.
    """
    operations = _operations(options)
    where = checkpoint_of(options)
    name = f"--model-path is {str(where)!r}" if options.model_path is not None else f"the packaged checkpoint {where}"
    if not where.is_dir():
        raise UsageError([f"{name}: there is no such directory"])
    try:
        model = LoadedModel.load(where, options.context_length, operations)
    except BadCheckpoint as error:
        faults = list(error.faults)
    except BadTokenizer as error:
        faults = [str(error), *_other_faults(where)]
    except BadTokenMap as error:
        faults = [str(error)]
    else:
        faults = _unfit(model)
        if not faults:
            _check(options, model)
            return model
    raise UsageError([f"{name}: {fault}" for fault in faults])


def limits_of(options: Options) -> Limits:
    """What bounds the engine.

    Only roles that run prompts replay: decode reads what prefill has left of them, and keeps the windows that it keeps.
    """
    splits = options.role != "encode" and options.decoder_replay == "on"
    return Limits(
        page_size=options.page_size,
        max_total_tokens=options.max_total_tokens,
        max_running_requests=options.max_running_requests,
        max_queued_requests=options.max_queued_requests,
        chunked_prefill_size=options.chunked_prefill_size,
        cache_type="bf16" if options.kv_cache_dtype == "bf16" else "fp4",
        replay=options.decoder_replay_preset if splits else None,
        encoder_replay=options.role in PROMPTED and options.encoder_replay == "on",
        prefix_cache=options.prefix_cache == "on",
        window_cache_tokens=options.window_cache_tokens,
    )


def layout_of(engine: Engine, options: Options) -> Layout:
    """The shape of this server's pieces; two different layout keys make two different layouts."""
    key = f"/{options.layout_key}" if options.layout_key else ""
    return Layout(
        page_size=options.page_size,
        page_bytes=engine.page_bytes,
        window_page_bytes=engine.window_page_bytes,
        state_bytes=engine.state_bytes,
        kv_cache_dtype=options.kv_cache_dtype,
        kv_layout=f"{engine.layout}{key}"[:MAX_LAYOUT],
    )


def _operations(options: Options) -> Operations:
    """What computes over the caches.

    Raises:
        UsageError: The choice cannot be met.
    """
    try:
        operations = dispatch.load(options.kernels, torch.device("cpu"))
    except dispatch.Unavailable as error:
        raise UsageError([f"--kernels is {options.kernels!r}: {error} (--kernels torch)"]) from None
    if operations.name == "triton" and options.kv_cache_dtype == "bf16":
        raise UsageError(["--kv-cache-dtype is 'bf16': Triton's kernels read only fp4; give that or --kernels torch"])
    return operations


def _other_faults(where: Path) -> tuple[str, ...]:
    """What is wrong besides the tokenizer, which is read first."""
    try:
        checkpoint.load(where, torch.float32)
    except BadCheckpoint as error:
        return error.faults
    return ()


def _unfit(model: LoadedModel) -> list[str]:
    """Where tokenizer and configuration, each fine by itself, disagree on ids."""
    config, tokenizer = model.weights.config, model.tokenizer
    pairs = (
        ("text_config.vocab_size", config.text.vocab_size, tokenizer.vocab_size),
        ("image_token_id", config.image_token_id, tokenizer.image_id),
        ("text_config.eos_token_id", config.text.eos_token_id, tokenizer.eos_id),
    )
    return [
        f"config.json: {name} is {value}: tokenizer.json has {expected}; copy both from one checkpoint"
        for name, value, expected in pairs
        if value != expected
    ]


def _check(options: Options, model: LoadedModel) -> None:
    """Options against the model's sizes."""
    faults = []
    longest = model.weights.config.text.max_position_embeddings
    if options.context_length > longest:
        faults.append(
            f"--context-length is {options.context_length}: the checkpoint's max_position_embeddings is {longest}; "
            "give that or less"
        )
    try:
        geometry = model.geometry(options.page_size, limits_of(options).cache_type)
    except ValueError as error:
        faults.append(f"--page-size does not suit the checkpoint: {error}")
    else:
        file = occupied(HEADER + geometry.page_bytes)
        if options.kv_disk_path is not None and options.kv_disk_bytes < file:
            faults.append(
                f"--kv-disk-bytes is {options.kv_disk_bytes}: the file of a single page takes {file}; give that or more"
            )
    least = model.config.window + options.page_size
    if limits_of(options).encoder_replay and options.chunked_prefill_size < least:
        faults.append(
            f"--chunked-prefill-size is {options.chunked_prefill_size}: encoder replay runs {model.config.window} "
            f"tokens again and needs room for them and a page, {least}; give that or more, or --encoder-replay off"
        )
    if faults:
        raise UsageError(faults)
