"""Images and other media: how they come in, are prepared, and reach the GPUs."""

from __future__ import annotations

import ipaddress
import json
from typing import TYPE_CHECKING, Final

from epd_operator.engines.sglang.base import IS_CUDA, IS_ENCODER, IS_SM100
from epd_operator.engines.sglang.flags import env, flag, written
from epd_operator.engines.sglang.switch import switch
from epd_operator.rules.expression import Opaque, named, some, when
from epd_operator.rules.rule import ROLES, Rule

if TYPE_CHECKING:
    from epd_operator.rules.expression import Value

_SOURCE: Final = "SGLang 0.5.23, arg_groups/serving_hook.py"
_KINDS: Final = ("image", "video", "audio")

_OLD_IPC: Final = env("SGLANG_USE_CUDA_IPC_TRANSPORT")
MM_FEATURE_TRANSPORT: Final = named(
    "mm_feature_transport",
    when(
        IS_ENCODER,
        "cpu",
        written("mm-feature-transport").otherwise(when(switch("SGLANG_USE_CUDA_IPC_TRANSPORT"), "cuda_ipc", "cpu")),
    ),
    written("mm-feature-transport"),
    _OLD_IPC,
)


def _media_config_fault(text: Value) -> bool:
    """Whether the configuration of media processors has the wrong shape."""
    try:
        config = json.loads(str(text)) if text is not None else None
    except (ValueError, RecursionError):
        return False
    if config is None:
        return False
    if not isinstance(config, dict):
        return True
    return any(kind in config and not isinstance(config[kind], dict) for kind in _KINDS)


def _domain_fault(domains: Value) -> str | None:
    """The first allowed media domain that is not a bare host name; None when all are."""
    for domain in domains if isinstance(domains, list | tuple) else ():
        if not isinstance(domain, str) or not _is_host(domain):
            return str(domain)
    return None


def _is_host(domain: str) -> bool:
    host = domain.strip().rstrip(".")
    if not host or "://" in host or any(character in host for character in "/?#@"):
        return False
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    try:
        ipaddress.ip_address(host)
    except ValueError:
        try:
            host.encode("idna")
        except UnicodeError:
            return False
        return ":" not in host
    return True


_DOMAIN_FAULT: Final = Opaque(
    "whether every allowed media domain is a host name", _domain_fault, (written("allowed-media-domains"),), "str"
)

RULES: Final = (
    Rule(
        id="image-processor-conflict",
        when=flag("disable-fast-image-processor") & ~flag("image-processor-backend").isin(("auto", "pil")),
        sides=(written("disable-fast-image-processor"), written("image-processor-backend")),
        says="the switch of older releases selects the pil back end and cannot be combined with another",
        fix="remove disable-fast-image-processor",
        source=_SOURCE,
        decided_by="serving_hook.handle_deprecated_args",
        roles=ROLES,
    ),
    Rule(
        id="media-cache-size",
        when=written("mm-preprocess-cache-size-mb") < 0,
        sides=(written("mm-preprocess-cache-size-mb"),),
        says="a cache cannot have a negative size",
        fix="set mm-preprocess-cache-size-mb to 0 or more",
        source=_SOURCE,
        decided_by="serving_hook.handle_multimodal",
        roles=ROLES,
    ),
    Rule(
        id="media-processor-config",
        when=Opaque(
            "whether the media processor configuration has the right shape",
            _media_config_fault,
            (written("mm-process-config"),),
            "bool",
            blind=False,
            nullable=False,
        ),
        sides=(written("mm-process-config"),),
        says="media processors are configured by a JSON object whose image, video and audio are objects",
        fix='set mm-process-config, such as {{"image": {{}}}}, or leave it out',
        source=_SOURCE,
        decided_by="serving_hook.handle_multimodal",
        roles=ROLES,
    ),
    Rule(
        id="media-file-size",
        when=flag("media-url-max-file-size-mb") < 0,
        sides=(written("media-url-max-file-size-mb"),),
        says="the largest media file cannot have a negative size",
        fix="set media-url-max-file-size-mb to 0 or more",
        source="SGLang 0.5.23, utils/common.py",
        decided_by="common.configure_media_url_security",
        roles=ROLES,
    ),
    Rule(
        id="media-domain-name",
        when=_DOMAIN_FAULT.given,
        sides=(written("allowed-media-domains"),),
        says="{domain} is not a bare host name: no scheme, port or path is allowed",
        fix="write the host name alone, such as images.example.com",
        source="SGLang 0.5.23, utils/common.py",
        decided_by="common._normalize_media_domain",
        roles=ROLES,
        shows={"domain": _DOMAIN_FAULT},
    ),
    Rule(
        id="media-transport-hardware",
        when=some(
            MM_FEATURE_TRANSPORT.isin(("cuda_ipc", "cuda_vmm")) & ~IS_CUDA,
            (MM_FEATURE_TRANSPORT == "cuda_vmm") & ~(flag("pp-size") == 1),
            (MM_FEATURE_TRANSPORT == "cuda_ipc") & ~(flag("nnodes") == 1),
        ),
        sides=(MM_FEATURE_TRANSPORT, written("nnodes")),
        says="handing media features over in GPU memory needs NVIDIA GPUs; cuda_ipc also one node, cuda_vmm no "
        "pipeline",
        fix="set mm-feature-transport: cpu or leave it out, and unset SGLANG_USE_CUDA_IPC_TRANSPORT",
        source=_SOURCE,
        decided_by="serving_hook.handle_multimodal_feature_transport",
        roles=ROLES,
    ),
    Rule(
        id="fp4-indexer-hardware",
        when=flag("enable-deepseek-v4-fp4-indexer") & IS_CUDA & ~IS_SM100,
        sides=(written("enable-deepseek-v4-fp4-indexer"),),
        says="the FP4 indexer runs on SM100 and gfx950 GPUs, not on SM90",
        fix="remove enable-deepseek-v4-fp4-indexer",
        source=_SOURCE,
        decided_by="serving_hook.handle_environment_variables",
        roles=ROLES,
    ),
    Rule(
        id="speech-limits",
        when=some(flag("asr-max-buffer-seconds") <= 0, flag("asr-max-concurrent-sessions") <= 0),
        sides=(written("asr-max-buffer-seconds"), written("asr-max-concurrent-sessions")),
        says="seconds and sessions of speech recognition are at least 1",
        fix="leave both out: DeepSeek-V4.1 takes no speech",
        source=_SOURCE,
        decided_by="serving_hook.handle_asr_validation",
        roles=ROLES,
    ),
)
RESOLVED: Final = (MM_FEATURE_TRANSPORT,)
