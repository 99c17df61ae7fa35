from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings

from epd_workers.reference.model.config import RELEASED, SHIPPED, BadConfig, Config
from epd_workers.reference.model.engram_hash import table_rows
from tests.support.reference.configs import configs


def test_the_released_layers() -> None:
    plans = RELEASED.text.plans
    assert [p.index for p in plans if p.mode == "Full"] == [2, 8, 14, 20]
    assert [p.index for p in plans if p.mode == "Reindex"] == [24, 28, 32, 36]
    assert [p.index for p in plans if p.mode == "Window"] == [0, 1]
    assert [p.index for p in plans if p.engram] == [1, 14]
    assert [p.index for p in plans if p.candidates] == [20]
    assert [p.ratio for p in plans] == [0, 0, *(2,) * 18, *(1,) * 20]
    assert {p.kv_source for p in plans if p.decoder} == {20}
    assert [p.index_source for p in plans[20:]] == [20] * 4 + [24] * 4 + [28] * 4 + [32] * 4 + [36] * 4
    assert [p.kv_source for p in plans[2:20]] == [2] * 6 + [8] * 6 + [14] * 6
    assert RELEASED.text.split == 20
    assert sum(p.owns_kv for p in plans) == 4
    assert sum(p.owns_index for p in plans) == 8


@pytest.mark.parametrize("config", [RELEASED, SHIPPED])
def test_configs_go_to_json_and_back(config: Config) -> None:
    assert Config.from_json(config.to_json()) == config
    assert config.text.engram_num_embeddings == table_rows(config.text)


@settings(max_examples=30)
@given(configs())
def test_every_random_config_is_accepted(data: dict[str, Any]) -> None:
    assert Config.from_json(data).to_json()["text_config"]["compress_ratios"] == data["text_config"]["compress_ratios"]


@pytest.mark.parametrize(
    ("where", "key", "value", "says"),
    [
        ("text_config", "hidden_size", "big", "hidden_size is 'big': must be an integer"),
        ("text_config", "hidden_size", 0, "hidden_size is 0: must be at least 1"),
        ("text_config", "hidden_size", None, "hidden_size is None: must be an integer"),
        ("text_config", "compress_ratios", [0, 0], "must have num_hidden_layers + num_nextn_predict_layers (9)"),
        ("text_config", "compress_ratios", [0, 0, 2, 2, 1, 1, 1, 4, 0], "must be 0, 1 or 2"),
        ("text_config", "compress_ratios", [0, 0, 2, 2, 1, 1, 2, 1, 0], "its kv source, layer 4, has 1"),
        ("text_config", "compress_ratios", [0, 1, 2, 2, 1, 1, 1, 1, 0], "no kv source stands at or before it"),
        ("text_config", "compress_ratios", [0, 0, 0, 2, 1, 1, 1, 1, 0], "compress_ratios[2] is 0"),
        ("text_config", "kv_source_layer_ids", [], "must be rising layer numbers below 8"),
        ("text_config", "kv_source_layer_ids", [4, 2], "must be rising layer numbers"),
        ("text_config", "kv_source_layer_ids", [2, 5], "must be in index_source_layer_ids"),
        ("text_config", "candidate_source_layer_id", 2, "must be the last of kv_source_layer_ids (4)"),
        ("text_config", "engram_layer_ids", [4], "must stand before layer 4"),
        ("text_config", "engram_num_embeddings", [1, 2], "one entry per engram_layer_ids"),
        ("text_config", "dspark_target_layer_ids", [1], "must be 4 to 7"),
        ("text_config", "head_dim", 48, "head_dim is 48: must be a multiple of 32"),
        ("text_config", "index_head_dim", 40, "index_head_dim is 40: must be a multiple of 32"),
        ("text_config", "qk_rope_head_dim", 33, "must be even and at most 32"),
        ("text_config", "o_groups", 3, "must be a multiple of o_groups (3)"),
        ("text_config", "num_key_value_heads", 2, "num_key_value_heads is 2: must be 1"),
        ("text_config", "num_experts_per_tok", 9, "at most n_routed_experts (8)"),
        ("text_config", "scoring_func", "softmax", "must be sqrtsoftplus"),
        ("text_config", "rope_scaling", 16, "rope_scaling is int: must be an object"),
        ("text_config", "hidden_size", 2**31, "must be at most 2147483647"),
        ("text_config", "n_routed_experts", 10**6, "must be at most 4096"),
        ("text_config", "engram_max_ngram_size", 10**9, "must be at most 16"),
        ("text_config", "engram_n_heads", 10**400, "must be at most 1024"),
        ("text_config", "rms_norm_eps", 10**400, "must be a number"),
        ("text_config", "rms_norm_eps", -1e-6, "must be above 0"),
        ("text_config", "swiglu_limit", 0, "must be above 0"),
        ("text_config", "rope_theta", 0.0, "must be above 0"),
        ("text_config", "hidden_act", "gelu", "must be silu"),
        ("text_config", "topk_method", "greedy", "must be noaux_tc"),
        ("text_config", "norm_topk_prob", False, "must be true"),
        ("text_config", "attention_bias", True, "must be false"),
        ("text_config", "tie_word_embeddings", True, "must be false"),
        ("text_config", "n_shared_experts", 2, "must be 1"),
        ("text_config", "model_type", "deepseek_v4_text", "must be deepseek_v41_text"),
        ("text_config", "index_source_layer_ids", [2, 3, 4, 6], "must stand behind the candidate source, at 5 to 7"),
        ("text_config", "index_source_layer_ids", [2, 4, 8], "must stand behind the candidate source, at 5 to 7"),
        ("text_config", "index_source_layer_ids", [2, 6, 4], "must be rising"),
        ("text_config", "engram_layer_ids", [-1], "must stand before layer 4"),
        ("text_config", "engram_layer_ids", [1, 1], "must be rising"),
        ("text_config", "engram_pad_token_id", 512, "must be an id below vocab_size (512)"),
        ("text_config", "dspark_noise_token_id", -1, "must be an id below vocab_size (512)"),
        ("text_config", "dspark_target_layer_ids", [], "must be 4 to 7"),
        ("text_config", "dspark_num_experts_per_tok", 5, "at most dspark_n_routed_experts (4)"),
        ("text_config", "compress_ratios", [0, 0, 2, 2, 1, 1, 1, 1, 1], "must be 0 for draft stages"),
        ("vision_config", "model_type", "siglip", "must be deepseek_v41_vision"),
        ("vision_config", "hidden_size", 60, "must be a multiple of 4 * num_attention_heads (16)"),
        ("vision_config", "max_image_tokens", 3, "must be at least 4"),
        ("vision_config", "max_wh_ratio", 0.5, "must be null or at least 1"),
        ("vision_config", "max_wh_ratio", "wide", "must be a number"),
    ],
)
def test_a_wrong_value_is_named_with_its_rule(where: str, key: str, value: Any, says: str) -> None:
    data = SHIPPED.to_json()
    data[where][key] = value
    with pytest.raises(BadConfig) as error:
        Config.from_json(data)
    assert says in str(error.value)
    assert key in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [("factor", 0, "above 0"), ("original_max_position_embeddings", -1, "at least 1"), ("type", "linear", "yarn")],
)
def test_a_wrong_scaling_is_named(key: str, value: Any, says: str) -> None:
    data = SHIPPED.to_json()
    data["text_config"]["rope_scaling"][key] = value
    with pytest.raises(BadConfig, match=f"text_config.rope_scaling.{key} is .*: must be .*{says}"):
        Config.from_json(data)


def test_a_picture_s_id_is_one_of_the_vocabulary() -> None:
    with pytest.raises(BadConfig, match=r"image_token_id is 512: must be an id below vocab_size \(512\)"):
        Config.from_json(SHIPPED.to_json() | {"image_token_id": 512})


def test_a_number_is_the_same_with_and_without_a_point() -> None:
    data = SHIPPED.to_json()
    data["text_config"]["rope_theta"] = 10000
    data["text_config"]["rope_scaling"]["factor"] = 16
    assert json.dumps(Config.from_json(data).to_json()) == json.dumps(SHIPPED.to_json())


def test_all_faults_are_listed_at_once() -> None:
    data = copy.deepcopy(SHIPPED.to_json())
    data["model_type"] = "llama"
    data["image_token_id"] = True
    del data["text_config"]["vocab_size"]
    data["vision_config"] = []
    with pytest.raises(BadConfig) as error:
        Config.from_json(data)
    assert len(error.value.faults) == 4


def test_keys_without_a_meaning_here_are_ignored() -> None:
    data = SHIPPED.to_json() | {"transformers_version": "5.0"}
    data["text_config"]["torch_dtype"] = "bfloat16"
    assert Config.from_json(data) == SHIPPED
