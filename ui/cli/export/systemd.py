"""A systemd unit of a supervisor (spec 8, 13): how it is started, reloaded, watched, and given time to drain.

Why it says what it says:
- KillMode=mixed: SIGTERM goes to the supervisor alone, which drains; engines that got it too would drop their requests.
- TimeoutStopSec comes from the drains of the config, so that systemd never kills a drain that is within its time.
- OOMPolicy=continue: an engine that the kernel kills is restarted by the supervisor; the default stops the whole unit.
- RestartPreventExitStatus=2: a config with errors is not cured by another start.
- A runtime folder of its own: systemd removes it when the unit stops, and no other unit may lose its sockets by it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import StokerError
from ui.cli.exits import Exit
from ui.cli.reach import DEFAULT_NAME

WATCHDOG_S = 30
"""Without a word from the supervisor for this long, systemd takes it for hung and starts it anew."""
RESTART_S = 2
"""Between an end and the next start. systemd's own 0.1 s spends its five tries on a busy port in a second."""
KILL = "/bin/kill"

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_UNFIT = re.compile(rf"{_CONTROL.pattern}|\\\Z")


class CannotExport(StokerError):
    """Something that cannot be written into a unit."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the unit is made of.

    command: the words that start `stoker`, the first an absolute path. config, folder: absolute; relative paths in the
    config are read from `folder`. user: whom it runs as. grace_s: seconds from SIGTERM to SIGKILL. key_variable: the
    environment variable of the API key, None where the config names none.
    """

    name: str
    command: Sequence[str]
    config: Path
    folder: Path
    user: str
    grace_s: int
    key_variable: str | None


def unit_name(name: str) -> str:
    """`stoker` for the supervisor of the default name, else `stoker-NAME`; its runtime folder has the same name."""
    return "stoker" if name == DEFAULT_NAME else f"stoker-{name}"


def unit(facts: Facts) -> str:
    """The unit's text, without a last line end. Raises CannotExport."""
    name = unit_name(facts.name)
    serve = [*facts.command, "serve", "--headless", "--name", facts.name, "-c", str(facts.config)]
    config = _comment(str(facts.config))
    return f"""\
# To install it (it then runs as the user {_comment(facts.user)}, and obeys `stoker` of that user alone):
#   stoker export systemd --name {facts.name} -c {config} | sudo tee /etc/systemd/system/{name}.service
#   sudo systemctl daemon-reload && sudo systemctl enable --now {name}
#   STOKER_RUNTIME_DIR=/run/{name} stoker status

[Unit]
Description=Stoker {facts.name}
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
NotifyAccess=main
User={_value(facts.user)}
WorkingDirectory={_value(str(facts.folder))}
RuntimeDirectory={name}
RuntimeDirectoryMode=0700
Environment=STOKER_RUNTIME_DIR=%t/{name}
# {_about_the_key(facts.key_variable)}
#EnvironmentFile=/etc/stoker/{name}.env
ExecStart={" ".join(_word(word) for word in serve)}
ExecReload={KILL} -HUP $MAINPID
KillMode=mixed
# From the longest drain_timeout_s of the config: export the unit again when that changes.
TimeoutStopSec={facts.grace_s}
WatchdogSec={WATCHDOG_S}
Restart=on-failure
RestartSec={RESTART_S}
RestartPreventExitStatus={Exit.USAGE:d}
OOMPolicy=continue

[Install]
WantedBy=multi-user.target"""


def _about_the_key(variable: str | None) -> str:
    if variable is None:
        return "Further variables, such as an API key that stoker.api_key_env names: a file of its own, mode 0600."
    return f"It needs the API key: write {variable}=... into a file of mode 0600 and take the # off the next line."


def _word(text: str) -> str:
    """A word of a command line, so that systemd neither splits nor replaces anything in it."""
    escaped = _value(text).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"' if re.search(r"[\s'\"\\;]", text) or not text else escaped


def _value(text: str) -> str:
    """A value that is taken to the end of its line: only `%` means something in it. Raises CannotExport."""
    if _UNFIT.search(text):
        raise CannotExport(f"a unit holds no control character and no backslash at an end, found {text!r}: rename it")
    return text.replace("%", "%%")


def _comment(text: str) -> str:
    """Text in a comment; one that ends with a backslash would take the next line with it."""
    return _CONTROL.sub("?", text).rstrip("\\")
