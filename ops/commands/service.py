"""``decibatch service``."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ops.exits import Exit, Trouble
from ops.settings import (
    CONFIG_VARIABLE,
    ENV_PREFIX,
    Settings,
    config_file,
    default_config_file,
    load,
    read_file,
)

if TYPE_CHECKING:
    from ops.doctor.finding import Finding
    from ops.service.launchctl import Ask
    from ops.service.manager import Manager
    from ops.service.plist import Service

ELSEWHERE = (
    "launchd is part of macOS. Here, let the init of this system run `decibatch worker`: docs/operations.md has a unit "
    "for systemd. `decibatch service print` shows what launchd would be told."
)
FOLLOW_S = 0.5


def launchctl() -> Ask:
    """The one place that knows whether there is a launchd; tests put a recorded one here."""
    if sys.platform != "darwin":
        raise Trouble(ELSEWHERE, Exit.USAGE)
    from ops.service.launchctl import ask

    return ask


def _system_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--system",
        is_flag=True,
        help="A LaunchDaemon, which starts before anybody logs in; needs root.",
    )(command)


@click.group("service")
def service_command() -> None:
    """Run the worker as a service of macOS.

    Without --system it is a LaunchAgent: it runs while you are logged in at the screen. Settings come from the
    TOML file; what is set in this shell does not reach the service.
    """


@service_command.command("install")
@_system_option
def install_command(system: bool) -> int:
    """Write the property list and start the service; again, to bring it up to date."""
    manager = _manager(system)
    file = manager.service.config
    if not file.is_file():
        raise Trouble(
            f"The service reads its settings from {file}, which is not there: create it first.", Exit.USAGE
        )
    for name in set_in_this_shell():
        click.echo(f"{name} is set in this shell; the service will not see it: put it into {file}.", err=True)
    if file.stat().st_mode & 0o077 and "redis_url" in file.read_text("utf-8"):
        click.echo(f"Others can read {file}, which may hold a password: chmod 600 '{file}'", err=True)
    click.echo(manager.install())
    return Exit.OK


@service_command.command("uninstall")
@_system_option
def uninstall_command(system: bool) -> int:
    """Stop the service and remove it; settings, models and logs stay."""
    click.echo(_manager(system).uninstall())
    return Exit.OK


@service_command.command("start")
@_system_option
def start_command(system: bool) -> int:
    """Start it, and wait until it runs."""
    click.echo(_manager(system).start())
    return Exit.OK


@service_command.command("stop")
@_system_option
def stop_command(system: bool) -> int:
    """Let it finish what runs, and stop it until `start`, login or boot."""
    click.echo(_manager(system).stop())
    return Exit.OK


@service_command.command("restart")
@_system_option
def restart_command(system: bool) -> int:
    """Stop and start it: after an update of Decibatch, of Python or of the settings."""
    click.echo(_manager(system).restart())
    return Exit.OK


@service_command.command("status")
@_system_option
@click.option("--json", "as_json", is_flag=True, help="One object.")
def status_command(system: bool, as_json: bool) -> int:
    """Tell what launchd knows of it; exit 0 only where it runs."""
    manager = _manager(system)
    loaded = manager.status()
    running = loaded is not None and loaded.running
    told = {
        "target": manager.place.target,
        "file": str(manager.place.file),
        "installed": manager.place.file.is_file(),
        "loaded": loaded is not None,
        "running": running,
        "state": loaded.state if loaded else "",
        "pid": loaded.pid if loaded else None,
        "last_exit": loaded.last_exit if loaded else "",
        "runs": loaded.runs if loaded else None,
    }
    if as_json:
        click.echo(json.dumps(told))
    else:
        width = max(map(len, told))
        for name, value in told.items():
            click.echo(f"{name:<{width}}  {'-' if value in ('', None) else value}")
    return Exit.OK if running else Exit.UNHEALTHY


@service_command.command("logs")
@_system_option
@click.option("-n", "--lines", type=click.IntRange(min=0), default=50, show_default=True)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes; ^C ends.")
def logs_command(system: bool, lines: int, follow: bool) -> int:
    """Print the end of the service's log, and the words of a crash where there are any."""
    launchctl()
    service = _service(system)
    if not service.log.is_file() and not service.output.is_file():
        raise Trouble(f"There is no {service.log} yet: the service has not run.", Exit.UNHEALTHY)
    for path in (service.output, service.log):
        if path.is_file():
            for line in last_lines(path, lines):
                click.echo(line)
    if follow:
        try:
            for line in following(service.log):
                click.echo(line)
        except KeyboardInterrupt:
            pass
    return Exit.OK


@service_command.command("print")
@_system_option
def print_command(system: bool) -> int:
    """Print the property list, on any system; nothing is written."""
    from ops.service.plist import render

    click.echo(render(_service(system)).decode(), nl=False)
    return Exit.OK


def service_finding() -> Finding:
    """For the doctor: whether a service is installed, is as it should be now, and runs."""
    from ops.doctor.finding import ok, warn
    from ops.service.plist import render

    manager = next((one for one in map(_manager, (False, True)) if one.place.file.is_file()), None)
    if manager is None:
        return ok("service", "None is installed.")
    flag = " --system" if manager.place.domain == "system" else ""
    if manager.place.file.read_bytes() != render(manager.service):
        said = f"{manager.place.file} is of another version, environment or setting than this one."
        return warn("service", said, f"decibatch service install{flag}")
    loaded = manager.status()
    if loaded is None or not loaded.running:
        said = f"{manager.place.target} does not run; its last exit: {loaded.last_exit if loaded else 'not loaded'}."
        return warn("service", said, f"decibatch service start{flag}, and decibatch service logs{flag}")
    return ok("service", f"{manager.place.target} runs as process {loaded.pid}.")


# --- from this machine to plain values --------------------------------------------------------------


def _manager(system: bool) -> Manager:
    from ops.service.manager import Manager, place

    ask = launchctl()
    service = _service(system)
    return Manager(service, place(service, system=system, uid=os.getuid(), home=service.home), ask)


def _service(system: bool) -> Service:
    from ops.service.plist import Service

    user, home = _person()
    config = _settings_file(home)
    return Service(
        # Not resolved: a virtual environment is its link to the interpreter.
        python=Path(sys.executable).absolute(),
        config=config,
        log_dir=home / "Library" / "Logs" / "decibatch",
        home=home,
        drain_s=_drain_s(config),
        user=user if system else None,
    )


def _person() -> tuple[str, Path]:
    """Whose worker it is: under sudo, whoever called it. A worker has no need of root."""
    import pwd

    name = os.environ.get("SUDO_USER")
    entry = pwd.getpwnam(name) if name and os.geteuid() == 0 else pwd.getpwuid(os.getuid())
    home = os.environ.get("HOME") if entry.pw_uid == os.getuid() else None
    return entry.pw_name, Path(home or entry.pw_dir)


def _drain_s(file: Path) -> float:
    """As the service will read it: from the file alone. Raises SettingsInvalid."""
    given = read_file(file if file.is_file() else None).get(
        "drain_s", Settings.model_fields["drain_s"].default
    )
    return load(drain_s=given).drain_s


def _settings_file(home: Path) -> Path:
    """The file that the service will read: the one that is named here, else the default place of its user."""
    chosen = config_file() if os.environ.get(CONFIG_VARIABLE) else None
    if chosen is not None:
        return chosen.expanduser().absolute()
    default = default_config_file()
    return home / default.relative_to(Path.home()) if default.is_relative_to(Path.home()) else default


def set_in_this_shell() -> list[str]:
    """Names of our variables that are set here; never their values."""
    return sorted(name for name in os.environ if name.startswith(ENV_PREFIX) and name != CONFIG_VARIABLE)


def last_lines(path: Path, count: int) -> list[str]:
    """The end of a file that may be large."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - 400 * max(1, count)))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return lines[-count:] if count else []


def following(path: Path) -> Any:
    """Lines that are appended, also after the file was put aside and begun anew. Without end."""
    position = path.stat().st_size if path.is_file() else 0
    held = ""
    while True:
        time.sleep(FOLLOW_S)
        if not path.is_file():
            continue
        if path.stat().st_size < position:
            position, held = 0, ""
        with path.open("rb") as file:
            file.seek(position)
            held += file.read().decode("utf-8", "replace")
            position = file.tell()
        *lines, held = held.split("\n")
        yield from lines
