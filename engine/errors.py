"""The root of every error that Stoker raises on purpose.

An error says what was expected, what was found and what to do. Each boundary (HTTP, control socket, exit code)
turns it into its own language in one place: `supervisor.gateway.errors`, `supervisor.control.server`, `ui.cli.main`.
"""

from __future__ import annotations


class StokerError(Exception):
    """Root of Stoker's own errors; its text is fit to be shown to a user as it is."""


class ProtocolError(StokerError):
    """A frame from outside that is not what the wire allows: wrong version, type, size or identity."""
