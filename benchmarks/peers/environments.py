"""The peers' virtual environments: one each below .bench/ (ignored by git), made once, versions pinned here."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / ".bench"
INSTALL_LIMIT_S = 900


@dataclasses.dataclass(frozen=True)
class Peer:
    """A server to be measured beside. name: in the tables. script: beside this file. packages: what pip installs,
    pinned, into an environment of its own."""

    name: str
    script: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Its environment."""
        return BENCH / self.name.lower().replace(" ", "-")

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "bin" / "python")

    @property
    def version(self) -> str:
        """What the table says it was."""
        return ", ".join(pin.replace("==", " ") for pin in self.packages)


MOSEC = Peer("Mosec", "with_mosec.py", ("mosec==0.9.8",))
LITSERVE = Peer("LitServe", "with_litserve.py", ("litserve==0.2.19",))
RAY = Peer("Ray Serve", "with_ray.py", ("ray[serve]==2.60.0",))
UVICORN = Peer("bare uvicorn", "with_uvicorn.py", ("uvicorn==0.54.0", "httptools==0.9.0", "uvloop==0.23.0"))


class NotInstalled(Exception):
    """pip could not; the message says why in its last words."""


def ensure(peer: Peer) -> None:
    """Install a peer where it is not yet, with these versions. Raises NotInstalled."""
    stamp = peer.folder / ".installed"
    wanted = "\n".join(peer.packages)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"installing {wanted} into {peer.folder} …", flush=True)
    shutil.rmtree(peer.folder, ignore_errors=True)
    venv.create(peer.folder, with_pip=True)
    command = [peer.python, "-m", "pip", "install", "--quiet", *peer.packages]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"pip took more than {INSTALL_LIMIT_S} s") from None
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if not line.startswith("WARNING")]
        raise NotInstalled(said[-1] if said else f"pip ended with {error.returncode}") from None
    stamp.write_text(wanted)
