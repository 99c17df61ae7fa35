"""What a user wrote reaches the engine as it is written, whatever the kubelet expands."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from epd_operator.plan.objects.expansion import literal

if TYPE_CHECKING:
    from tests.support.world import MakeResource, World

_VARIABLES = {"HOME": "/tmp", "POD_IP": "10.0.0.1", "": "nothing"}


def _expand(text: str) -> str:
    """As the kubelet does: `$$` is a dollar sign, `$(NAME)` the variable if there is one, and else itself."""
    return re.sub(
        r"\$\$|\$\(([^)]*)\)",
        lambda actual: "$" if actual[0] == "$$" else _VARIABLES.get(actual[1], actual[0]),
        text,
    )


@given(st.text("$()HOMEPD_I x", max_size=30))
def test_expanding_gives_back_what_was_written(text: str) -> None:
    assert _expand(literal(text)) == text


def test_nothing_but_texts_is_touched() -> None:
    value: dict[str, Any] = {"a": ["$x", 1, True, None], "b": {"c": "$(HOME)"}}
    assert literal(value) == {"a": ["$$x", 1, True, None], "b": {"c": "$$(HOME)"}}


def test_a_pod_gets_flags_names_paths_and_variables_as_they_are_written(
    make_world: type[World], make_resource: MakeResource
) -> None:
    roles = {
        "prefill": {"args": {"chat-template": "$(HF_TOKEN)"}, "env": {"GREETING": "$(HOME) $$"}},
        "decode": {},
    }
    engine = {"type": "SGLang", "version": "0.5.23", "platform": "cuda-sm90", "image": "sglang:1"}
    model = {"path": "/$(POD_IP)", "servedName": "$(HOME)"}
    transfer = {"backend": "mooncake_tcp"}
    world = make_world(make_resource(engine=engine, model=model, roles=roles, transfer=transfer))
    (prefill,) = (o for o in world.plan().objects if o["kind"] == "Deployment" and "prefill" in o["metadata"]["name"])
    container = prefill["spec"]["template"]["spec"]["containers"][0]
    words = container["args"]
    for flag, value in (("--chat-template", "$$(HF_TOKEN)"), ("--model-path", "/$$(POD_IP)")):
        assert words[words.index(flag) + 1] == value
    assert words[words.index("--served-model-name") + 1] == "$$(HOME)"
    assert {"name": "GREETING", "value": "$$(HOME) $$$$"} in container["env"]
    assert {"name": "SGLANG_HOST_IP", "value": "$(POD_IP)"} in container["env"]
