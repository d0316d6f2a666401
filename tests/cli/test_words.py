"""What a real supervisor answers to those who are new to it: faults, reload, logs and stop."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Stoker
from tests.support import Running, stub_config


def test_the_answers_say_what_was_done_and_what_was_not(stoker: Stoker, tmp_path: Path) -> None:
    with Running(tmp_path, stub_config(1), name="default") as running:
        running.wait_ready(1)

        for unseen in ("stub/template", "stub/0", "stub"):
            assert stoker("logs", unseen) == (0, "", f"{unseen} has printed nothing yet\n")
        assert stoker("logs") == (0, "", "nothing was printed yet\n")
        assert stoker("logs", "other/template").code == 1
        assert stoker("logs", "stub/template", "--json") == (0, "", "stub/template has printed nothing yet\n")

        assert stoker("faults", "stub/0", "say=hello") == (0, "", "stub/0 has new faults\n")
        assert stoker("faults", "stub/0") == (0, "", "stub/0 has no faults any more\n")

        text = running.config.read_text()
        assert stoker("reload") == (0, "", "no replica starts or stops\n")
        running.config.write_text(text.replace("127.0.0.1:0", "127.0.0.1:8999"))
        warned = "warning: stoker.listen changed; it takes effect at the next start\n"
        assert stoker("reload") == (0, "", f"no replica starts or stops\n{warned}")
        running.config.write_text(f"{stub_config(2)}  admin_scale: true\n")
        assert stoker("reload").err == (
            "stub: 1 kept, 1 added, 0 removed\nwarning: stoker.admin_scale changed; it takes effect at the next start\n"
        )
        assert stoker("stop", "--now") == (0, "", "stopping; gone in 40 s at the latest\n")  # 10 s and the stop's 30 s
        assert running.process.wait(60) == 0
