"""The command as a whole: help, exit codes, errors, and what it does not load."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from engine.errors import StokerError
from supervisor.control.client import NotRunning
from supervisor.control.messages import Subscribe
from tests.cli.conftest import Stoker, command
from tests.cli.fake import FakeSupervisor
from ui.cli import main as main_module
from ui.cli.exits import EXIT_SENTENCES, Exit
from ui.cli.main import ERROR_EXITS, ForeignSupervisor, check_owner, exit_of
from ui.cli.main import stoker as group
from ui.cli.verb import Verb
from ui.cli.verbs import VERBS

HEAVY = ("torch", "transformers", "textual", "rich", "yaml", "httptools", "ruamel")


def load(name: str) -> click.Command:
    found = group.get_command(click.Context(group), name)
    assert found is not None
    return found


def test_help_shows_every_verb_and_every_exit_code() -> None:
    result = CliRunner().invoke(group, ["--help"])
    assert result.exit_code == 0
    for name, sentence in VERBS.items():
        assert f"  {name}" in result.output
        assert sentence in result.output
    assert all(sentence in result.output for sentence in EXIT_SENTENCES.values())
    assert set(EXIT_SENTENCES) == set(Exit)


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_says_the_same_in_its_own_help_with_examples_and_a_sentence_an_option(name: str) -> None:
    verb = load(name)
    assert isinstance(verb, Verb)
    assert verb.get_short_help_str(limit=200) == VERBS[name]
    assert verb.examples
    for option in (each for each in verb.params if isinstance(each, click.Option)):
        assert option.help and option.help.rstrip(".") != option.help, option.name
    result = CliRunner().invoke(group, [name, "--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.output


@pytest.mark.parametrize(
    "words",
    [[], ["--help"], ["--version"], ["status", "--json"], ["status"], ["scale", "primary", "2"], ["stop"]],
)
def test_light_commands_load_nothing_heavy(root: Path, words: list[str]) -> None:
    script = (
        "import sys; from ui.cli.main import main; code = main(sys.argv[1:]); "
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    with FakeSupervisor(root):
        done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=30)
    assert done.stderr.splitlines()[-1] == "[]"
    assert done.returncode == (0 if words else 2)


def test_help_does_not_even_load_the_wire(root: Path) -> None:
    script = "import sys; from ui.cli.main import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    loaded = set(done.stderr.split())
    assert not loaded & {"msgspec", "zmq", "asyncio", "psutil", "supervisor.control.client"}
    assert not any(name.startswith("ui.cli.verbs.") for name in loaded)


# -------------------------------------------------------------------------------- errors to exit codes


def test_every_error_in_the_table_exists_and_is_ours() -> None:
    for name, code in ERROR_EXITS.items():
        module, _, kind = name.rpartition(".")
        error = getattr(importlib.import_module(module), kind)
        assert issubclass(error, StokerError)
        assert code in (Exit.USAGE, Exit.NOT_RUNNING)


def test_an_error_without_an_entry_of_its_own_takes_that_of_its_parent() -> None:
    class Nearer(NotRunning):
        pass

    assert exit_of(Nearer("gone")) is Exit.NOT_RUNNING
    assert exit_of(StokerError("anything else")) is Exit.FAILED


def test_an_unknown_verb_is_answered_with_the_nearest_one(stoker: Stoker) -> None:
    ran = stoker("statsu")
    assert ran.code == 2
    assert "did you mean 'status'?" in ran.err
    assert ran.out == ""


def test_a_verb_like_none_is_answered_with_all_of_them(stoker: Stoker) -> None:
    ran = stoker("xyzzy")
    assert ran.code == 2
    assert "serve, stop, reload" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["status", "--jsn"], "--json"),
        (["scale", "primary"], "stoker: missing argument 'N'\nUsage: stoker scale [OPTIONS] DEPLOYMENT N\n"),
        (
            ["scale", "primary", "0"],
            "N: expected a number from 1 to 64, or +N or -N for so many more or fewer",
        ),
        (["scale", "primary", "65"], "found '65'"),
        (["scale", "primary", "+0"], "found '+0'"),
        (["scale", "primary", "two"], "found 'two'\nsee `stoker scale --help`\n"),
        (["scale", "primary", "2", "--timeout", "-1"], "--timeout: expected a number over 0, found '-1'"),
        (["logs", "-n", "-1"], "-n / --lines: expected a whole number, 0 or more, found '-1'"),
        (["bench", "--clients", "2.5"], "--clients: expected a whole number from 1 to 10000, found '2.5'"),
        (["bench", "--rate", "nan"], "--rate: expected a number over 0, 1000000 at most, found 'nan'"),
        (["bench", "--warmup", "inf"], "--warmup: expected a number, 0 or more, found 'inf'"),
        (["completion", "tcsh"], "SHELL: 'tcsh' is not one of 'bash', 'zsh', 'fish'\n"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2_and_says_what_was_expected(
    stoker: Stoker, words: list[str], said: str
) -> None:
    ran = stoker(*words)
    assert ran.code == 2
    assert said in ran.err
    assert ran.out == ""


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["scale", "primary", "2"],
        ["drain", "primary/0"],
        ["stop"],
        ["logs", "-f"],
        ["events"],
        ["reload"],
    ],
)
def test_without_a_supervisor_it_is_exit_code_3_and_one_sentence(stoker: Stoker, words: list[str]) -> None:
    ran = stoker(*words)
    assert ran == (3, "", "stoker: no supervisor is running; `stoker serve` starts one\n")


def test_the_version_is_that_of_the_distribution(stoker: Stoker) -> None:
    ran = stoker("--version")
    assert ran.code == 0
    assert ran.out.startswith("stoker 0.")


def test_a_reader_that_leaves_is_no_error(root: Path) -> None:
    with FakeSupervisor(root):
        watching = subprocess.Popen(
            command("status", "--watch", "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert watching.stdout is not None and watching.stderr is not None
        watching.stdout.readline()
        watching.stdout.close()
        assert watching.wait(20) == Exit.PIPE_CLOSED
        assert watching.stderr.read() == ""
        watching.stderr.close()


def test_a_full_disk_is_one_sentence(root: Path) -> None:
    with FakeSupervisor(root), open("/dev/full", "w") as full:
        done = subprocess.run(command("status"), stdout=full, stderr=subprocess.PIPE, text=True, timeout=30)
    assert done.returncode == Exit.FAILED
    assert done.stderr == "stoker: standard output cannot be written: No space left on device\n"


def test_ctrl_c_is_quiet(root: Path) -> None:
    with FakeSupervisor(root) as fake:
        following = subprocess.Popen(command("events", "-f"), stderr=subprocess.PIPE, text=True)
        assert following.stderr is not None
        fake.wait_for(Subscribe)
        following.send_signal(signal.SIGINT)
        assert following.wait(20) == Exit.INTERRUPTED
        assert "Traceback" not in following.stderr.read()
        following.stderr.close()


# ------------------------------------------------------------------------------------- the import name


def test_our_own_package_is_accepted() -> None:
    import supervisor
    import ui

    check_owner(str(ui.__file__), str(supervisor.__file__))


def test_another_distribution_that_owns_the_name_is_told_in_one_sentence(
    tmp_path: Path, stoker: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "site-packages" / "supervisor"
    elsewhere.mkdir(parents=True)
    with pytest.raises(ForeignSupervisor, match="pipx install stoker"):
        check_owner(str(main_module.__file__).replace("cli/main.py", "__init__.py"), str(elsewhere / "__init__.py"))
    monkeypatch.setattr("supervisor.__file__", str(elsewhere / "__init__.py"))
    ran = stoker("--help")
    assert ran.code == 1
    assert ran.err.count("\n") == 1
    assert str(elsewhere) in ran.err


def test_two_distributions_in_one_folder_are_seen(tmp_path: Path) -> None:
    for name in ("ui", "supervisor"):
        (tmp_path / name).mkdir()
    (tmp_path / "supervisor" / "supervisord.py").touch()
    with pytest.raises(ForeignSupervisor):
        check_owner(str(tmp_path / "ui" / "__init__.py"), str(tmp_path / "supervisor" / "__init__.py"))


# ------------------------------------------------------------------------------------------ completion


@pytest.mark.parametrize(
    ("shell", "word"), [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete --no-files")]
)
def test_completion_scripts(stoker: Stoker, shell: str, word: str) -> None:
    ran = stoker("completion", shell)
    assert ran.code == 0
    assert word in ran.out
    assert "_STOKER_COMPLETE" in ran.out


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("stoker s", ["serve", "stop", "status", "scale"]),
        ("stoker drain ", ["primary/0", "primary/1"]),
        ("stoker scale p", ["primary"]),
        ("stoker bench p", ["primary"]),
        ("stoker threads certify p", ["primary"]),
        ("stoker restart primary", ["primary", "primary/0", "primary/1"]),
        ("stoker status --name ", ["default"]),
        ("stoker status --w", ["--watch"]),
    ],
)
def test_a_shell_is_offered_verbs_options_and_names(root: Path, line: str, offered: list[str]) -> None:
    words = line.split()
    environ = os.environ | {
        "_STOKER_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) if line.endswith(" ") else len(words) - 1),
    }
    with FakeSupervisor(root):
        done = subprocess.run(command(), env=environ, capture_output=True, text=True, timeout=30)
    assert [entry.partition(",")[2] for entry in done.stdout.splitlines()] == offered
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_is_offered_the_names_of_replicas(root: Path, shell: str) -> None:
    """In the way in which its own script asks: words and position, for fish the word under the cursor."""
    environ = os.environ | {
        "_STOKER_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "stoker drain primary/",
        "COMP_CWORD": "primary/" if shell == "fish" else "2",
    }
    with FakeSupervisor(root):
        done = subprocess.run(command(), env=environ, capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    assert "primary/0" in done.stdout and "primary/1" in done.stdout and "serve" not in done.stdout


def test_completion_without_a_supervisor_offers_no_names_and_says_nothing(root: Path) -> None:
    environ = os.environ | {
        "_STOKER_COMPLETE": "bash_complete",
        "COMP_WORDS": "stoker drain ",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(command(), env=environ, capture_output=True, text=True, timeout=30)
    assert (done.stdout.strip(), done.stderr) == ("", "")
