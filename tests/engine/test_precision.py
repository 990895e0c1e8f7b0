"""Changes of precision on real weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def model(mlx: Any, kernels: Any, tiny_folder: Path) -> Any:
    """A model of one's own, to be changed."""
    from engine.whisper.model import load_model

    return load_model(tiny_folder, mlx.float32, kernels)


def logits(mlx: Any, model: Any) -> Any:
    noise = np.random.default_rng(1).standard_normal((2, 640, model.dims.n_mels)).astype(np.float32)
    cache = model.cache(model.encode(mlx.array(0.3 * noise)))
    model.decode([[50257], [50257]], cache, [0])
    return np.array(model.decode([[50257], [50257]], cache, [0])[:, 0])


def test_down_and_up_again(mlx: Any, model: Any, tiny_folder: Path) -> None:
    """32 to 8 to 4 and back: bits change, memory follows what the rungs promise, and the way back is exact."""
    from engine.whisper import precision

    exact = logits(mlx, model)
    promised = {rung.bits: rung.weights_bytes for rung in precision.rungs(model)}
    assert list(promised) == [32, 8, 4]
    correlation = {}
    for bits in (8, 4, 8, 32):
        held = precision.weights_bytes(model)
        measured = precision.change(model, tiny_folder, bits)
        assert model.bits == bits
        assert precision.weights_bytes(model) == promised[bits]
        # The positions' table is counted with the weights; a few kilobytes are the test's own.
        assert abs((measured.after - measured.before) - (promised[bits] - held)) < 1 << 20
        correlation[bits] = np.corrcoef(logits(mlx, model).ravel(), exact.ravel())[0, 1]
    assert correlation[8] > 0.99
    assert 0.8 < correlation[4] < correlation[8]
    assert np.array_equal(logits(mlx, model), exact)


def test_the_way_down_needs_less_than_it_promises(mlx: Any, model: Any, tiny_folder: Path) -> None:
    """From dense weights to 8 bits the peak stays under what the rung says, far from both forms at once."""
    from engine.whisper import precision

    rung = next(rung for rung in precision.rungs(model) if rung.bits == 8)
    measured = precision.change(model, tiny_folder, 8)
    assert measured.peak - measured.before <= rung.from_dense_bytes
    assert measured.before - measured.after > 90 << 20


def test_the_way_up_needs_less_than_it_promises(mlx: Any, model: Any, tiny_folder: Path) -> None:
    """From disk the peak stays under the larger weights and what the rung says."""
    from engine.whisper import precision

    dense = precision.rungs(model)[0]
    precision.change(model, tiny_folder, 8)
    measured = precision.change(model, tiny_folder, 32)
    assert measured.peak <= measured.after + dense.from_disk_bytes


def test_the_encoder_keeps_eight_bits(mlx: Any, model: Any, tiny_folder: Path) -> None:
    """At 4 bits the decoder has 4 and the encoder 8."""
    from engine.whisper import precision

    precision.change(model, tiny_folder, 4)
    assert {block.mlp1.bits for block in model.encoder} == {8}
    assert {block.cross_key.bits for block in model.decoder} == {4}
    assert model.embedding.bits == 4


def test_a_change_that_does_not_happen_is_an_error(
    mlx: Any, model: Any, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight that stays as it was is told, as when a quantized layer is quantized again by MLX."""
    from engine.whisper import precision

    monkeypatch.setattr(precision._Change, "_linear", lambda self, old, name, decoder: old)
    with pytest.raises(precision.PrecisionError, match="did not come to 8 bits"):
        precision.change(model, tiny_folder, 8)


def test_there_is_no_way_to_other_bits(mlx: Any, model: Any, tiny_folder: Path) -> None:
    """Seven bits are refused before anything is touched."""
    from engine.whisper import precision

    with pytest.raises(precision.PrecisionError):
        precision.change(model, tiny_folder, 7)
    assert model.bits == 32


def test_a_model_can_be_loaded_at_fewer_bits(mlx: Any, kernels: Any, tiny_folder: Path, model: Any) -> None:
    """Loaded at 8 bits it is what a change to 8 bits makes of it, without room for all dense weights at once."""
    from engine.whisper import precision
    from engine.whisper.model import load_model

    dense_bytes = precision.weights_bytes(model)
    precision.change(model, tiny_folder, 8)
    mlx.clear_cache()
    mlx.reset_peak_memory()
    before = mlx.get_active_memory()
    loaded = load_model(tiny_folder, mlx.float32, kernels, 8)
    assert loaded.bits == 8
    assert precision.weights_bytes(loaded) == precision.weights_bytes(model)
    assert mlx.get_peak_memory() - before < dense_bytes * 1.15
    assert np.array_equal(logits(mlx, loaded), logits(mlx, model))


def test_the_hosts_product_is_mlxs(mlx: Any) -> None:
    """Blocks that are unpacked by NumPy multiply as MLX's dequantized weight does, at 8 and at 4 bits."""
    from engine.whisper import packed

    def each(work: Any, count: int) -> None:
        for i in range(count):
            work(i)

    rng = np.random.default_rng(2)
    weight, x = (
        rng.standard_normal((200, 384)).astype(np.float32),
        rng.standard_normal((5, 384)).astype(np.float32),
    )
    for bits in (8, 4):
        parts = packed.pack(mlx.array(weight), bits)
        dense = np.array(mlx.dequantize(*parts, group_size=packed.GROUP, bits=bits))
        got = packed.host_matmul(x, packed.host_views(parts), bits, each)
        assert np.allclose(got, x @ dense.T, atol=1e-3)


def test_the_canary_hears_the_same(
    mlx: Any, model: Any, tokenizer: Any, tiny_folder: Path, ask: Any, clip: Any
) -> None:
    """At 8 bits a clip of real speech keeps its words and nearly its log-probability, and its samples are gone."""
    from engine.whisper import canary, precision

    request = ask("a", clip("beckett"))
    held = canary.keep(None, request, 0.0)
    assert held is not None
    before = canary.read(model, tokenizer, held)
    precision.change(model, tiny_folder, 8)
    told = canary.compare(before, canary.read(model, tokenizer, held))
    assert told is not None
    assert (told.words, told.words_changed) == (12, 0)
    assert abs(told.logprob_after - told.logprob_before) < 0.05
    assert list(Path(request.path).parent.glob(".canary-*")) == []


def test_the_canary_counts_words() -> None:
    """One substituted, one left out, one put in."""
    from engine.whisper.canary import distance

    assert distance(["a", "b", "c", "d"], ["a", "x", "c", "d"]) == 1
    assert distance(["a", "b", "c", "d"], ["a", "c", "d"]) == 1
    assert distance([], ["a", "b"]) == 2


def test_the_canary_is_renewed(clip: Any, ask: Any) -> None:
    """A clip is kept for a minute; then the next one takes its place."""
    from engine.whisper import canary

    first = canary.keep(None, ask("a", clip("beckett", 0, 2)), 0.0)
    assert canary.keep(first, ask("b", clip("beckett", 2, 4)), 59.0) is first
    later = canary.keep(first, ask("b", clip("beckett", 2, 4)), 61.0)
    assert later is not None
    assert later.at == 61.0
