"""NumPy kernels against MLX's own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def on_device(mlx: Any, tiny_folder: Any) -> Any:
    """The same model over MLX's own operations."""
    from engine.whisper.kernels import DeviceKernels
    from engine.whisper.model import load_model

    return load_model(tiny_folder, mlx.float32, DeviceKernels())


@pytest.fixture(scope="module")
def windows_of_noise() -> Any:
    return np.random.Generator(np.random.Philox(3)).standard_normal((3, 200, 80)).astype(np.float32) * 0.3


def test_gelu_is_exact_to_float32() -> None:
    """The form by way of tanh lies within float32 rounding of x Phi(x), also far out."""
    from engine.whisper.kernels import gelu_in_place

    x = np.concatenate([np.linspace(-12, 12, 20_001), [-1e4, 1e4, 0.0]]).astype(np.float32)
    exact = np.array([v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in x.astype(float)])
    gelu_in_place(x)
    assert np.abs(x - exact)[:-3].max() < 2e-6
    assert list(x[-3:]) == [0.0, 1e4, 0.0]


def test_layers_go_to_the_device_one_by_one(
    mlx: Any, on_device: Any, windows_of_noise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer of encoder and decoder is under way before the next is described."""
    on_device.hear_silence()
    plain, begun = mlx.async_eval, []
    monkeypatch.setattr(mlx, "async_eval", lambda x: (begun.append(x.shape), plain(x)))
    features = on_device.encode(mlx.array(windows_of_noise))
    assert begun == [(3, 100, 384)] * 4
    begun.clear()
    on_device.decode([[50257, 50362]] * 3, on_device.cache(features), [1])
    assert begun == [(3, 2, 384)] * 4


def test_encoders_agree(mlx: Any, tiny: Any, on_device: Any, windows_of_noise: Any) -> None:
    """Both kernels give the decoder the same keys and values, for one window and for several."""
    ours = tiny.encode(mlx.array(windows_of_noise))
    alone = tiny.encode(mlx.array(windows_of_noise[1:2]))[0]
    theirs = on_device.encode(mlx.array(windows_of_noise))
    for row in range(3):
        for layer in range(4):
            for side in range(2):
                assert np.abs(ours[row][layer][side] - np.array(theirs[row][layer][side])).max() < 2e-3
    for layer in range(4):
        assert np.array_equal(alone[layer][0], ours[1][layer][0]), "a window alone is the window in a batch"


def test_decoders_agree_while_rows_come_and_go(
    mlx: Any, tiny: Any, on_device: Any, windows_of_noise: Any
) -> None:
    """Rows of unlike windows and lengths that join and leave give the same logits under both kernels."""

    def story(model: Any) -> Any:
        long = model.encode(mlx.array(windows_of_noise[:2]))
        short = model.encode(mlx.array(windows_of_noise[2:, :120]))
        cache = model.cache(long)
        seen = [model.decode([[50257, 50362, 440], [50257, 50362, 441]], cache, [0, 2])]
        other = model.cache(short)
        seen.append(model.decode([[50257]], other, [0]))
        cache.append(other)
        for step in range(70):
            seen.append(model.decode([[440 + step], [500 + step], [600 + step]], cache, [0]))
        cache.keep([2, 0])
        seen.append(model.decode([[11], [12]], cache, [0]))
        assert cache.lengths == [72, 74]
        return seen

    for ours, theirs in zip(story(tiny), story(on_device), strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() < 5e-3


def test_a_row_decodes_as_if_alone(mlx: Any, tiny: Any, windows_of_noise: Any) -> None:
    """Logits of a row among others equal those of the row alone, up to float32 rounding."""
    features = tiny.encode(mlx.array(windows_of_noise))
    together = tiny.decode([[50257, 440]] * 3, tiny.cache(features), [1])
    for row in range(3):
        alone = tiny.decode([[50257, 440]], tiny.cache([features[row]]), [1])
        assert np.abs(together[row] - alone[0]).max() < 1e-3


def test_logits_are_the_product_with_the_embedding(mlx: Any, kernels: Any) -> None:
    """The product in blocks equals the plain one, also where blocks do not divide the vocabulary."""
    generator = np.random.Generator(np.random.Philox(5))
    for rows, tokens in ((1, 97), (3, 64), (17, 1001)):
        x = generator.standard_normal((rows, 2, 48)).astype(np.float32)
        table = generator.standard_normal((tokens, 48)).astype(np.float32)
        found = kernels.logits(mlx.array(x), mlx.array(table))
        assert np.abs(found - x @ table.T).max() < 1e-4


def test_a_group_of_silence_weighs_as_much_as_its_frames(mlx: Any) -> None:
    """Where the frames of each group are alike, attention to the groups is the attention to all of their frames."""
    from engine.whisper.kernels import POOL, DeviceKernels, groups_behind, pooled

    generator = np.random.Generator(np.random.Philox(9))

    def some(*shape: int) -> Any:
        return mlx.array(generator.standard_normal(shape).astype(np.float32))

    query, key, value = some(2, 5, 128), some(2, 6, 128), some(2, 6, 128)
    groups = some(1, 7, 128), some(1, 7, 128)
    frames = [mlx.repeat(side, POOL, axis=1) for side in groups]
    far = [mlx.repeat(side, 2, axis=0) for side in frames]
    whole = DeviceKernels.attend(
        query, *(mlx.concatenate(p, axis=1) for p in zip((key, value), far, strict=True))
    )
    found = DeviceKernels.attend(query, key, value, groups)
    assert np.abs(np.array(found) - np.array(whole)).max() < 1e-5
    for side, group in zip(frames, groups, strict=True):
        assert np.abs(np.array(pooled(side)) - np.array(group)).max() < 1e-6
    assert [groups_behind(n * POOL + extra) for n, extra in ((3, 0), (3, 1))] == [3, 4]


def test_a_short_window_hears_what_a_long_one_does(mlx: Any, tiny: Any, clip: Any) -> None:
    """With silence behind it, a window of the speech and two seconds gives the choices of a window of 30 s."""
    from engine import spool
    from engine.whisper import audio

    speech = clip("beckett", 0, 6.0)
    mel = audio.log_mel(audio.from_pcm(spool.read_spool(speech.path, 0, speech.samples)), 80)
    tokens = [[50257, 50362, 10776, 3088]]
    found = []
    for frames in (416, 1500):
        features = tiny.encode(mlx.array(audio.window(mel, 0, 2 * frames)[None]))
        found.append(tiny.decode(tokens, tiny.cache(features), [1, 2, 3])[0])
    short, long = found
    likely = np.exp(long - long.max(axis=1, keepdims=True)) > 0.05
    assert (short.argmax(axis=1) == long.argmax(axis=1)).all()
    assert np.abs(short - long)[likely].max() < 0.75
    assert tiny.silence is not None and tiny.silence.decoder[0][0].shape[1] == 1500
