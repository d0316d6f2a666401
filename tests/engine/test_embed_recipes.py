"""What a model's own files ask for is done: poolings, dense layers, prompts, lengths. What is unknown is refused.

The models are tiny and random. Expected vectors come from transformers' own classes and a few lines of numpy.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import (
    AutoModel,
    BertConfig,
    BertModel,
    Qwen2Config,
    Qwen2Model,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5EncoderModel,
    T5Model,
)

from engine.backends.artifacts import resolve
from engine.backends.base import LoadError, RequestError
from engine.backends.encoders import BertEncoder
from engine.backends.tasks import task_of
from engine.backends.transformers import TransformersBackend
from engine.messages import Route
from tests.engine.conftest import MINILM, Vectors, embed, launch

TEXTS = ["a", "some words here", "one two three four five six seven", "b c d", "Ünïcode 世界 and more of it"]
WIDTH = 32
SMALL = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
BERT = BertConfig(vocab_size=30522, max_position_embeddings=64, **SMALL)
BERT_MODULES = [("Transformer", ""), ("Pooling", "1_Pooling")]


def save_model(folder: Path, model: Any) -> Path:
    """A model with MiniLM's tokeniser."""
    torch.manual_seed(5)
    model.init_weights()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(resolve(MINILM).path / name, folder)
    return folder


def describe(folder: Path, modules: Sequence[tuple[str, str]], **pooling: Any) -> None:
    """Write modules.json and the pooling's config as sentence-transformers does."""
    listed = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT, as transformers saves it."""
    return save_model(tmp_path_factory.mktemp("models") / "bert", BertModel(BERT))


@pytest.fixture(scope="module")
def hidden(saved: Path) -> list[Vectors]:
    """Its hidden states for `TEXTS`."""
    return hidden_states(saved)


@pytest.fixture
def bert(saved: Path, tmp_path: Path) -> Path:
    """A copy of it, for a test to describe as it likes."""
    return Path(shutil.copytree(saved, tmp_path / "bert"))


def backend(folder: Path, **options: Any) -> TransformersBackend:
    loaded = TransformersBackend(launch(artifact=str(folder), options=options))
    loaded.load()
    return loaded


def vectors_of(loaded: TransformersBackend, texts: Sequence[str] = TEXTS) -> Vectors:
    return embed(loaded, msgspec.json.encode({"input": list(texts)}))[1]


def hidden_states(folder: Path, texts: Sequence[str] = TEXTS) -> list[Vectors]:
    """The last hidden states (tokens, width) of each text alone, from transformers."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    kind = T5EncoderModel if "t5" in folder.name else AutoModel
    model = kind.from_pretrained(folder).eval()
    rows = [torch.tensor([tokenizer.encode(text).ids]) for text in texts]
    with torch.no_grad():
        return [model(input_ids=row).last_hidden_state[0].numpy() for row in rows]


def unit(vectors: Vectors) -> Vectors:
    scaled: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled


POOL: dict[str, Callable[[Vectors], Vectors]] = {
    "cls": lambda states: states[0],
    "max": lambda states: states.max(0),
    "mean": lambda states: states.mean(0),
    "mean_sqrt_len_tokens": lambda states: states.sum(0) / np.sqrt(len(states)),
    "weightedmean": lambda states: np.average(states, 0, np.arange(1, len(states) + 1)),
    "lasttoken": lambda states: states[-1],
}
SWITCHES = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


@pytest.mark.parametrize("encoder", ["auto", "transformers"])
@pytest.mark.parametrize("mode", POOL)
def test_every_pooling_is_done_as_it_is_said(bert: Path, hidden: list[Vectors], mode: str, encoder: str) -> None:
    describe(bert, BERT_MODULES, **{switch: name == mode for name, switch in SWITCHES.items()})
    expected = np.stack([POOL[mode](states) for states in hidden])
    assert np.abs(vectors_of(backend(bert, encoder=encoder)) - expected).max() < 1e-5


def test_several_poolings_are_joined_in_their_set_order(bert: Path, hidden: list[Vectors]) -> None:
    describe(bert, BERT_MODULES, pooling_mode_mean_tokens=True, pooling_mode_cls_token=True)
    expected = np.stack([np.concatenate([states[0], states.mean(0)]) for states in hidden])
    loaded = backend(bert)
    assert np.abs(vectors_of(loaded) - expected).max() < 1e-5
    assert loaded.card().dimensions == 2 * WIDTH
    assert not loaded.normalised


def test_the_newer_way_of_naming_a_pooling_is_read(bert: Path, hidden: list[Vectors]) -> None:
    describe(bert, [*BERT_MODULES, ("Normalize", "2_Normalize")], pooling_mode="lasttoken")
    expected = unit(np.stack([states[-1] for states in hidden]))
    loaded = backend(bert)
    assert np.abs(vectors_of(loaded) - expected).max() < 1e-5
    assert loaded.normalised


def test_a_dense_layer_is_applied_between_pooling_and_length(bert: Path, hidden: list[Vectors]) -> None:
    describe(bert, [*BERT_MODULES, ("Dense", "2_Dense"), ("Normalize", "3")], pooling_mode_mean_tokens=True)
    torch.manual_seed(1)
    weight, bias = torch.randn(8, WIDTH), torch.randn(8)
    (bert / "2_Dense").mkdir()
    activation = "torch.nn.modules.activation.Tanh"
    (bert / "2_Dense" / "config.json").write_text(json.dumps({"activation_function": activation}))
    save_file({"linear.weight": weight, "linear.bias": bias}, bert / "2_Dense" / "model.safetensors")
    mean = np.stack([states.mean(0) for states in hidden])
    expected = unit(np.tanh(mean @ weight.numpy().T + bias.numpy()))
    loaded = backend(bert)
    assert np.abs(vectors_of(loaded) - expected).max() < 1e-5
    assert loaded.card().dimensions == 8


def test_a_model_that_says_nothing_gets_mean_and_unit_length_and_a_line(
    bert: Path, hidden: list[Vectors], caplog: pytest.LogCaptureFixture
) -> None:
    expected = unit(np.stack([states.mean(0) for states in hidden]))
    with caplog.at_level(logging.WARNING):
        loaded = backend(bert)
    assert np.abs(vectors_of(loaded) - expected).max() < 1e-5
    assert "has no modules.json: mean pooling" in caplog.text


def test_prompt_case_and_length_are_the_models_own(bert: Path) -> None:
    describe(bert, BERT_MODULES, pooling_mode_mean_tokens=True)
    (bert / "sentence_bert_config.json").write_text('{"max_seq_length": 9, "do_lower_case": true}')
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (bert / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    loaded = backend(bert)
    job, vectors = embed(loaded, msgspec.json.encode({"input": ["HELLO", "w " * 50]}))
    assert [row.tokens for row in job.rows] == [5, 9]
    expected = hidden_states(bert, ["query: hello"])[0].mean(0)
    assert np.abs(vectors[0] - expected).max() < 1e-5


def test_a_transformer_in_a_folder_of_its_own_is_found(saved: Path, hidden: list[Vectors], tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "0_Transformer")
    modules = [("Transformer", "0_Transformer"), ("Pooling", "1_Pooling")]
    describe(tmp_path, modules, pooling_mode_mean_tokens=True)
    expected = np.stack([states.mean(0) for states in hidden])
    assert np.abs(vectors_of(backend(tmp_path)) - expected).max() < 1e-5


@pytest.mark.parametrize(
    ("modules", "pooling", "says"),
    [
        ([("WordEmbeddings", ""), ("Pooling", "1_Pooling")], {}, "expected Transformer, Pooling"),
        ([*BERT_MODULES, ("CNN", "2_CNN")], {"pooling_mode_mean_tokens": True}, "found CNN"),
        ([*BERT_MODULES, ("Dense", "2_Dense")], {"pooling_mode_mean_tokens": True}, "nothing is there"),
        (BERT_MODULES, {}, "found none"),
        (BERT_MODULES, {"pooling_mode_magic": True}, "found pooling_mode_magic"),
        (BERT_MODULES, {"pooling_mode": "magic"}, "found magic"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    bert: Path, modules: list[tuple[str, str]], pooling: dict[str, Any], says: str
) -> None:
    describe(bert, modules, **pooling)
    with pytest.raises(LoadError, match=says) as caught:
        backend(bert)
    assert caught.value.final


def set_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_a_model_made_to_be_cut_may_be_cut(bert: Path) -> None:
    set_config(bert, matryoshka_dimensions=[16, 8])
    loaded = backend(bert)
    job, whole = embed(loaded, b'{"input":["a","b c"],"dimensions":8}')
    answer = json.loads(job.answer(list(whole)))
    cut = np.array([item["embedding"] for item in answer["data"]])
    assert np.abs(cut - unit(whole[:, :8])).max() < 1e-6
    with pytest.raises(RequestError, match="this model has 32, 16, 8, found 9"):
        loaded.prepare(Route.EMBEDDINGS, b'{"input":"a","dimensions":9}', False)


def rename(folder: Path, change: Any) -> None:
    file = folder / "model.safetensors"
    save_file({change(name): weight for name, weight in load_file(file).items()}, file, {"format": "pt"})


def test_checkpoints_with_a_head_or_old_names_are_read(bert: Path) -> None:
    expected = vectors_of(backend(bert))
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, before in old.items():
        rename(bert, lambda name, new=new, before=before: name.replace(new, before))
    rename(bert, lambda name: f"bert.{name}")
    loaded = backend(bert)
    assert isinstance(loaded._task._encoder, BertEncoder)  # type: ignore[attr-defined]
    assert np.array_equal(vectors_of(loaded), expected)


def test_half_precision_weights_are_computed_in_float32(bert: Path) -> None:
    weights = {name: weight.half() for name, weight in load_file(bert / "model.safetensors").items()}
    save_file(weights, bert / "model.safetensors", {"format": "pt"})
    lean, own = vectors_of(backend(bert)), vectors_of(backend(bert, encoder="transformers"))
    assert np.abs(lean - own).max() < 1e-5


def test_a_checkpoint_that_lacks_weights_is_refused(bert: Path) -> None:
    weights = load_file(bert / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, bert / "model.safetensors", {"format": "pt"})
    with pytest.raises(LoadError, match=r"lacks 1 weights, the first is encoder\.layer\.1\.output\.dense\.weight"):
        backend(bert)


@pytest.mark.parametrize(
    "changes", [{"hidden_act": "relu"}, {"position_embedding_type": "relative_key"}, {"is_decoder": True}]
)
def test_a_bert_that_is_not_plain_is_left_to_transformers(bert: Path, changes: dict[str, Any]) -> None:
    set_config(bert, **changes)
    loaded = backend(bert)
    assert not isinstance(loaded._task._encoder, BertEncoder)  # type: ignore[attr-defined]


def others() -> dict[str, Any]:
    return {
        "roberta": RobertaModel(RobertaConfig(vocab_size=30522, max_position_embeddings=66, **SMALL)),
        "qwen2": Qwen2Model(Qwen2Config(vocab_size=30522, num_key_value_heads=1, **SMALL)),
        "t5": T5Model(T5Config(vocab_size=30522, d_model=WIDTH, d_kv=16, d_ff=48, num_layers=2, num_heads=2)),
    }


@pytest.mark.parametrize("name", ["roberta", "qwen2", "t5"])
def test_other_architectures_run_through_transformers(tmp_path: Path, name: str) -> None:
    folder = save_model(tmp_path / name, others()[name])
    describe(folder, BERT_MODULES, pooling_mode_lasttoken=True)
    expected = np.stack([states[-1] for states in hidden_states(folder)])
    assert np.abs(vectors_of(backend(folder)) - expected).max() < 1e-4 * np.abs(expected).max()


def test_a_roberta_reads_two_tokens_less_than_it_has_positions(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "roberta", others()["roberta"])
    loaded = backend(folder)
    assert loaded.card().max_model_len == 64
    assert np.isfinite(vectors_of(loaded, ["w " * 200])).all()


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ({"architectures": ["BertModel"]}, "embed"),
        ({"architectures": ["BertForMaskedLM"]}, "embed"),
        ({}, "embed"),
        ({"architectures": ["LlamaForCausalLM"]}, "generate"),
        ({"architectures": ["BertForSequenceClassification"]}, "classify"),
        ({"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}, "rerank"),
    ],
)
def test_the_task_is_read_off_the_models_config(tmp_path: Path, config: dict[str, Any], task: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert task_of(tmp_path) == task
    (tmp_path / "modules.json").write_text("[]")
    assert task_of(tmp_path) == "embed"
