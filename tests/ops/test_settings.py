"""Settings: where they come from, what is refused, what is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.settings import (
    DEFAULT_MODELS,
    SettingsInvalid,
    default_config_file,
    load,
    mask_url,
    misspelt,
    source_of,
)
from ops.worker_config import default_worker_name, worker_config


@pytest.fixture(autouse=True)
def no_user_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("DECIBATCH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DECIBATCH_CONFIG", "")


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def write(text: str) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(text)
        monkeypatch.setenv("DECIBATCH_CONFIG", str(path))
        return path

    return write


def test_the_file_beats_the_default(toml) -> None:
    """A value in the TOML file replaces the default."""
    toml('queue = "from-file"')
    assert load().queue == "from-file"


def test_the_environment_beats_the_file(toml, monkeypatch) -> None:
    """Of two values the environment's holds."""
    toml('queue = "from-file"')
    monkeypatch.setenv("DECIBATCH_QUEUE", "from-env")
    assert load().queue == "from-env"


def test_an_argument_beats_the_environment(monkeypatch) -> None:
    """What the program itself gives holds over the environment."""
    monkeypatch.setenv("DECIBATCH_QUEUE", "from-env")
    assert load(queue="given").queue == "given"


def test_an_unknown_key_is_named(toml) -> None:
    """A mistyped key in the file is an error that names it."""
    toml("lease_seconds = 3")
    with pytest.raises(SettingsInvalid, match="no setting called lease_seconds"):
        load()


def test_what_was_meant_is_named(toml) -> None:
    """A key that is nearly one is told with that one."""
    toml('redis_ulr = "redis://h"')
    with pytest.raises(SettingsInvalid, match=r"no setting called redis_ulr \(did you mean redis_url\?\)"):
        load()


def test_a_variable_that_is_nearly_a_setting_is_told() -> None:
    """What would be passed over in silence is named with what was meant; what is somebody else's is left alone."""
    environ = {
        "DECIBATCH_INPUT_ROOT": "/srv",
        "DECIBATCH_QUEUE": "main",
        "DECIBATCH_CONFIG": "",
        "DECIBATCH_HOSTNAME_OF_OUR_APP": "x",
        "PATH": "",
    }
    assert misspelt(environ) == ["DECIBATCH_INPUT_ROOT is no setting; did you mean DECIBATCH_INPUT_ROOTS?"]


def test_our_own_rules_are_told_in_our_own_words(monkeypatch) -> None:
    """No message begins with the name of a Python exception."""
    monkeypatch.setenv("DECIBATCH_INPUT_ROOTS", "uploads")
    with pytest.raises(SettingsInvalid) as caught:
        load()
    assert str(caught.value) == "input_roots: each folder must be an absolute path"


def test_a_wrong_value_is_named_but_not_shown(monkeypatch) -> None:
    """The error for a bad value names the setting and keeps the value to itself."""
    monkeypatch.setenv("DECIBATCH_LEASE_S", "hunter2")
    with pytest.raises(SettingsInvalid) as caught:
        load()
    assert "lease_s" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_models_that_are_not_json_name_the_variable(monkeypatch) -> None:
    """A table of models in the environment that is no JSON is an error naming the variable."""
    monkeypatch.setenv("DECIBATCH_MODELS", "tiny")
    with pytest.raises(SettingsInvalid, match="DECIBATCH_MODELS is not JSON"):
        load()


def test_a_file_that_was_asked_for_must_exist(monkeypatch, tmp_path) -> None:
    """DECIBATCH_CONFIG naming nothing is an error, not an empty file."""
    monkeypatch.setenv("DECIBATCH_CONFIG", str(tmp_path / "absent.toml"))
    with pytest.raises(SettingsInvalid, match="not a file"):
        load()


def test_a_file_that_is_not_toml_is_an_error(toml) -> None:
    """Broken TOML is told with its place in the file."""
    toml("queue = ")
    with pytest.raises(SettingsInvalid, match="is not TOML"):
        load()


def test_models_are_added_to_the_built_in_ones(toml) -> None:
    """Naming one more model keeps those that come with the package."""
    toml('[models]\nmine = "path:/models/mine"')
    assert load().models == {**DEFAULT_MODELS, "mine": "path:/models/mine"}


def test_an_empty_source_removes_a_model(toml) -> None:
    """A built-in alias can be taken away."""
    toml('[models]\nbase = ""')
    assert set(load().models) == {"tiny.en"}


def test_lists_are_written_with_commas(monkeypatch) -> None:
    """Aliases to serve are read from one variable, separated by commas."""
    monkeypatch.setenv("DECIBATCH_SERVE", "tiny.en, base")
    assert load().serve == ("tiny.en", "base")


def test_the_source_of_a_setting_is_told(toml, monkeypatch) -> None:
    """Each setting knows whether it comes from a variable, the file or neither."""
    path = toml('queue = "q"\nlease_s = 5')
    monkeypatch.setenv("DECIBATCH_LEASE_S", "6")
    assert [source_of(name) for name in ("lease_s", "queue", "credits")] == [
        "DECIBATCH_LEASE_S",
        str(path),
        "default",
    ]


def test_macos_keeps_its_file_in_application_support(monkeypatch) -> None:
    """On macOS the file is looked for where that system keeps such files."""
    monkeypatch.setattr("sys.platform", "darwin")
    assert default_config_file().parts[-4:] == ("Library", "Application Support", "decibatch", "config.toml")


def test_the_url_is_not_in_a_repr(monkeypatch) -> None:
    """Printing the settings does not print the password."""
    monkeypatch.setenv("DECIBATCH_REDIS_URL", "redis://user:hunter2@host/0")
    assert "hunter2" not in repr(load()) + str(load()) + load().model_dump_json()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://user:hunter2@host/0", "redis://user:***@host/0"),
        ("rediss://:hunt@er2@host/0", "rediss://:***@host/0"),
        ("unix:///run/redis.sock?db=1&password=hunter2", "unix:///run/redis.sock?db=1&password=***"),
    ],
)
def test_passwords_are_masked_in_urls(url: str, shown: str) -> None:
    """A URL is shown with stars for its password, wherever that stands, and is otherwise unchanged."""
    assert mask_url(url) == shown


def test_the_worker_is_told_what_was_set(monkeypatch) -> None:
    """Settings reach the part of the worker's configuration that they belong to, in its own units."""
    monkeypatch.setenv("DECIBATCH_MEMORY_BUDGET_MB", "2048")
    monkeypatch.setenv("DECIBATCH_MEMORY_QUEUE_PCT", "70")
    monkeypatch.setenv("DECIBATCH_BATCH_ITEMS", "4")
    monkeypatch.setenv("DECIBATCH_MAX_DURATION_S", "60")
    config = worker_config(load())
    assert config.engine.process.budget == 2 << 30
    assert config.thresholds.queue == pytest.approx(0.7)
    assert config.batch.max_items == 4
    assert config.media.max_duration_s == 60


def test_a_worker_serves_the_default_model_alone() -> None:
    """With nothing else set a worker loads one model, so that it needs memory for one."""
    assert worker_config(load()).engine.serve == ("tiny.en",)


def test_the_hosts_name_becomes_a_consumer_name(monkeypatch) -> None:
    """A host's name with signs that no key may hold still gives a valid name."""
    monkeypatch.setattr("socket.gethostname", lambda: "Jo's {Mac}.local")
    assert load(worker_name=default_worker_name()).worker_name == "Jo-s--Mac"


@pytest.mark.parametrize(
    ("url", "roots"),
    [
        ("redis://127.0.0.1:6379/0", None),
        ("redis://localhost/0", None),
        ("redis://[::1]:6379", None),
        ("unix:///run/redis.sock", None),
        ("redis://queue.example:6379/0", ()),
        ("rediss://10.0.0.5:6379/0", ()),
    ],
)
def test_files_are_read_for_this_machine_alone(monkeypatch, url, roots) -> None:
    """Where Redis can be reached from elsewhere, a worker reads no file until it is told which."""
    monkeypatch.setenv("DECIBATCH_REDIS_URL", url)
    assert worker_config(load()).media.roots == roots
    monkeypatch.setenv("DECIBATCH_INPUT_ROOTS", "/srv/a, /srv/b")
    assert worker_config(load()).media.roots == ("/srv/a", "/srv/b")


def test_a_root_is_an_absolute_path(monkeypatch) -> None:
    """A folder relative to wherever the worker was started is refused."""
    monkeypatch.setenv("DECIBATCH_INPUT_ROOTS", "audio")
    with pytest.raises(SettingsInvalid, match="absolute"):
        load()


@pytest.mark.parametrize("secret", ["whsec_", "hunter2hunter2!", "whsec_c2hvcnQ="])
def test_a_weak_webhook_secret_is_refused_and_not_shown(monkeypatch, secret) -> None:
    """A secret that is not base64, or too short, is an error that does not repeat it."""
    monkeypatch.setenv("DECIBATCH_WEBHOOK_SECRET", secret)
    with pytest.raises(SettingsInvalid) as caught:
        load()
    assert "webhook_secret" in str(caught.value) and secret not in str(caught.value)


def test_without_a_secret_no_webhook_is_sent(monkeypatch) -> None:
    """A worker that could not sign sends nothing; by default it sends to https and the public internet alone."""
    assert worker_config(load()).webhooks is None
    monkeypatch.setenv("DECIBATCH_WEBHOOK_SECRET", "whsec_" + "c2VjcmV0" * 6)
    webhooks = worker_config(load()).webhooks
    assert webhooks is not None
    assert (webhooks.schemes, webhooks.allow_private_hosts) == (("https",), False)


@pytest.mark.parametrize("bits", [0, 4, 8])
def test_a_choice_among_numbers_is_read_from_text(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment has text, and means the number."""
    monkeypatch.setenv("DECIBATCH_MEMORY_MIN_BITS", str(bits))
    assert load().memory_min_bits == bits
