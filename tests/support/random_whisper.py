"""A small Whisper of random weights: many schedules can be played with it in the time of one recording."""

from __future__ import annotations

from typing import Any

import numpy as np

WIDTH = 128


def config_and_variables(mx: Any) -> tuple[dict[str, int], dict[str, Any]]:
    """Two layers, whose choices are seldom close. For :class:`engine.whisper.model.Whisper`."""
    config = {
        "n_mels": 80,
        "n_audio_ctx": 1500,
        "n_audio_state": WIDTH,
        "n_audio_layer": 2,
        "n_vocab": 51_864,
        "n_text_ctx": 448,
        "n_text_state": WIDTH,
        "n_text_layer": 2,
    }
    generator = np.random.Generator(np.random.Philox(7))
    variables: dict[str, Any] = {}

    def put(name: str, *shape: int, scale: float) -> None:
        values = generator.standard_normal(shape).astype(np.float32) * np.float32(scale)
        variables[name] = mx.array(values)

    def norm(name: str) -> None:
        variables[f"{name}.weight"], variables[f"{name}.bias"] = mx.ones(WIDTH), mx.zeros(WIDTH)

    put("encoder.conv1.weight", WIDTH, 3, 80, scale=0.1)
    put("encoder.conv2.weight", WIDTH, 3, WIDTH, scale=0.1)
    for name in ("encoder.conv1.bias", "encoder.conv2.bias"):
        variables[name] = mx.zeros(WIDTH)
    for part in ("encoder", "decoder"):
        for layer in range(2):
            block = f"{part}.blocks.{layer}"
            attentions = ("attn", "cross_attn") if part == "decoder" else ("attn",)
            for attention in attentions:
                norm(f"{block}.{attention}_ln")
                for linear in ("query", "key", "value", "out"):
                    put(f"{block}.{attention}.{linear}.weight", WIDTH, WIDTH, scale=0.2)
            norm(f"{block}.mlp_ln")
            put(f"{block}.mlp1.weight", 4 * WIDTH, WIDTH, scale=0.1)
            put(f"{block}.mlp2.weight", WIDTH, 4 * WIDTH, scale=0.1)
    norm("encoder.ln_post")
    norm("decoder.ln")
    put("decoder.token_embedding.weight", 51_864, WIDTH, scale=1.0)
    put("decoder.positional_embedding", 448, WIDTH, scale=1.0)
    return config, variables
