"""The verbs of `stoker`: one small module each, with a function of the verb's name, loaded only when it is
called.

The table below is all that `stoker --help` and completion need to know, so neither loads a verb.
"""

from __future__ import annotations

SECTIONS: dict[str, dict[str, str]] = {
    "Run": {
        "serve": "Serve a model, or a config file, from N replicas.",
        "stop": "Drain everything and end the supervisor.",
        "reload": "Read the config file again and apply what changed.",
        "export": "Print a systemd unit, k8s manifests, or a Grafana dashboard.",
    },
    "Look": {
        "top": "Open the dashboard on a running supervisor.",
        "status": "Show deployments and replicas.",
        "logs": "Show what the replicas print.",
        "events": "Show what happened.",
        "devices": "List what this machine computes with.",
        "threads": "Show what was learned about thread counts, or certify them.",
        "bench": "Load a deployment and show what it can take.",
        "golden": "Print a model's answers, for other hosts to be checked against.",
        "check": "Check a config file and show what it would run.",
    },
    "Change": {
        "scale": "Set the number of replicas of a deployment.",
        "drain": "Take a replica out: it finishes what it has, then leaves.",
        "restart": "Restart a replica, or a deployment one replica at a time.",
        "eject": "Take a replica out of rotation for a while.",
        "readmit": "Put an ejected replica back into rotation.",
        "kill": "Kill a replica's processes at once.",
        "faults": "Make a stub replica misbehave on purpose.",
    },
    "Shell": {
        "completion": "Print the completion script of a shell.",
    },
}

VERBS = {name: sentence for verbs in SECTIONS.values() for name, sentence in verbs.items()}
"""Every verb with its sentence, in the order of the help page."""
