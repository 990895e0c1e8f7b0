"""The command line. Each command lives in :mod:`ops.commands` and is imported when it is asked for.

Exit codes are those of :class:`ops.exits.Exit`. Errors are one sentence on standard error; standard output
holds results alone.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

COMMANDS = {
    "demo": ("demo", "Start a server and a worker, transcribe real recordings, stop everything."),
    "submit": ("submit", "Send files or URLs to be transcribed."),
    "status": ("jobs", "Show how far a job is."),
    "result": ("jobs", "Print what a job gave."),
    "cancel": ("jobs", "Stop a job that has not ended."),
    "dead": ("dead", "Look at jobs that were given up on; retry or drop them."),
    "webhooks": ("webhooks", "Look at webhooks that were given up; send them again."),
    "worker": ("worker", "Run the daemon in the foreground."),
    "redis": ("redis", "Run an embedded Redis-compatible server in the foreground."),
    "health": ("health", "Tell whether some worker is ready and progressing."),
    "memory": ("memory", "Show what the memory governors hold, allow and have decided."),
    "top": ("top", "Watch the queue and its workers, live."),
    "doctor": ("doctor", "Check what a worker needs, and say what to mend."),
    "service": ("service", "Run the worker as a service of macOS (launchd)."),
    "config": ("config", "Show the settings in effect and where they come from."),
    "bench": ("bench", "Measure against the peers, in one run."),
}
"""Command: its module, and its line in the help. Importing none of them, help and errors are quick."""


class _Main(click.Group):
    """Loads commands when they are asked for, and turns known errors into a sentence and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"ops.commands.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            ctx.fail(f"No such command '{args[0]}'." + (f" Did you mean '{near[0]}'?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def main(  # type: ignore[override]  # the overloads of click tell standalone mode apart
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = "decibatch",
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line; in standalone mode, as a program does, this does not return."""
        if not standalone_mode:
            return super().main(args, prog_name, standalone_mode=False, **extra)
        sys.exit(self._run(args, prog_name, extra))

    def _run(self, args: Sequence[str] | None, prog_name: str | None, extra: dict[str, Any]) -> int:
        from ops.exits import TRANSLATED, Exit, explain

        try:
            code = super().main(args, prog_name, standalone_mode=False, **extra)
        except click.ClickException as exc:
            exc.show()
            return exc.exit_code
        except (KeyboardInterrupt, click.Abort):
            return Exit.INTERRUPTED
        except BrokenPipeError:
            # Whoever read us has gone; the interpreter must not try to flush to them again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return Exit.UNHEALTHY
        except TRANSLATED as exc:
            code, sentence = explain(exc)
            click.echo(f"decibatch: {sentence}", err=True)
        return code if isinstance(code, int) else Exit.OK


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.version_option(package_name="decibatch", message="%(prog)s %(version)s")
def main() -> None:
    """Speech recognition as jobs of a queue, on MLX.

    DECIBATCH_REDIS_URL names the server. `decibatch config` shows every setting.
    """
