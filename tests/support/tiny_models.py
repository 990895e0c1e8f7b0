"""Folders of mlx-audio's own recognizers with tiny random weights: the real classes, files and loaders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCABULARY = [f"▁{c}" for c in "abcdefghijklmnop"] + list("abcdefghijklmnop.") + ["<unk>"]


def _save(mx: Any, folder: Path, model: Any, config: dict[str, Any]) -> None:
    from mlx.utils import tree_flatten

    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (folder / "config.json").write_text(json.dumps(config))


def _randomize(mx: Any, model: Any, scale: float) -> None:
    """Wider weights than the initial ones: a network that says something, and not one thing for ever."""
    from mlx.utils import tree_map

    model.update(tree_map(lambda a: a + scale * mx.random.normal(a.shape), model.parameters()))
    mx.eval(model.parameters())


def parakeet(mx: Any, folder: Path, form: str = "tdt") -> Path:
    """Parakeet with a TDT, RNN-T or CTC decoder."""
    from mlx_audio.stt.models.parakeet.parakeet import Model

    mx.random.seed(3)

    classes = len(VOCABULARY)
    config: dict[str, Any] = {
        "target": "nemo.collections.asr.models.rnnt_bpe_models.EncDecRNNTBPEModel",
        "model_defaults": {"tdt_durations": [0, 1, 2, 3, 4]} if form == "tdt" else {},
        "preprocessor": {
            "sample_rate": 16000,
            "normalize": "per_feature",
            "window_size": 0.025,
            "window_stride": 0.01,
            "window": "hann",
            "features": 80,
            "n_fft": 512,
            "dither": 0.0,
        },
        "encoder": {
            "feat_in": 80,
            "n_layers": 2,
            "d_model": 32,
            "n_heads": 4,
            "ff_expansion_factor": 2,
            "subsampling_factor": 8,
            "self_attention_model": "rel_pos",
            "subsampling": "dw_striding",
            "conv_kernel_size": 9,
            "subsampling_conv_channels": 16,
            "pos_emb_max_len": 500,
        },
        "decoder": {
            "blank_as_pad": True,
            "vocab_size": classes,
            "prednet": {"pred_hidden": 16, "pred_rnn_layers": 1},
        },
        "joint": {
            "num_classes": classes,
            "vocabulary": VOCABULARY,
            "num_extra_outputs": 5 if form == "tdt" else 0,
            "jointnet": {
                "joint_hidden": 16,
                "activation": "relu",
                "encoder_hidden": 32,
                "pred_hidden": 16,
            },
        },
        "decoding": {"greedy": {"max_symbols": 4}},
    }
    if form == "tdt":
        config["decoding"] = {"model_type": "tdt", "durations": [0, 1, 2, 3, 4], "greedy": {"max_symbols": 4}}
    if form == "ctc":
        config["target"] = "nemo.collections.asr.models.ctc_bpe_models.EncDecCTCModelBPE"
        config["decoder"] = {"feat_in": 32, "num_classes": classes, "vocabulary": VOCABULARY}
    model = Model.from_config(json.loads(json.dumps(config)))
    _randomize(mx, model, 0.4 if form == "tdt" else 0.1)
    _save(mx, folder, model, config)
    return folder


def moonshine(mx: Any, folder: Path) -> Path:
    """Moonshine; its files hold transformers' layout, convolutions turned."""
    from mlx_audio.stt.models.moonshine.moonshine import Model

    mx.random.seed(3)

    config = {
        "model_type": "moonshine",
        "vocab_size": 128,
        "hidden_size": 32,
        "intermediate_size": 64,
        "encoder_num_hidden_layers": 2,
        "decoder_num_hidden_layers": 2,
        "encoder_num_attention_heads": 4,
        "decoder_num_attention_heads": 4,
    }
    model = Model(config)
    _randomize(mx, model, 0.3)
    weights = {}
    from mlx.utils import tree_flatten

    for name, array in tree_flatten(model.parameters()):
        turn = "conv" in name and "weight" in name and array.ndim == 3
        weights[name] = mx.contiguous(array.transpose(0, 2, 1)) if turn else array
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_pad|>", "<|audio_end|>")


def qwen3_asr(mx: Any, folder: Path) -> Path:
    """Qwen3-ASR with a tokenizer of single bytes."""
    from mlx_audio.stt.models.qwen3_asr import Model, ModelConfig
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    mx.random.seed(3)

    folder.mkdir(parents=True, exist_ok=True)
    letters = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    extractor = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": 128,
        "sampling_rate": 16000,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": 30,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(extractor))
    config = {
        "model_type": "qwen3_asr",
        "audio_token_id": tokenizer.token_to_id("<|audio_pad|>"),
        "audio_start_token_id": tokenizer.token_to_id("<|audio_start|>"),
        "audio_end_token_id": tokenizer.token_to_id("<|audio_end|>"),
        "support_languages": ["English", "Chinese"],
        "audio_config": {
            "num_mel_bins": 128,
            "encoder_layers": 1,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "d_model": 16,
            "output_dim": 32,
            "downsample_hidden_size": 8,
        },
        "text_config": {
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
        },
    }
    model = Model(ModelConfig.from_dict(json.loads(json.dumps(config))))
    _randomize(mx, model._model, 0.2)
    _save(mx, folder, model, config)
    return folder


BUILDERS: dict[str, Callable[[Any, Path], Path]] = {
    "parakeet": parakeet,
    "moonshine": moonshine,
    "qwen3_asr": qwen3_asr,
}
