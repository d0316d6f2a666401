"""Manifests for Kubernetes (spec 8, 13): a Deployment with its Service and the config, given time to drain.

Why they say what they say:
- Liveness asks /health, which says that the supervisor lives, and readiness /ready, which says that every deployment
  can answer and fails at once when a stop begins. A model that loads for minutes is therefore no dead pod.
- preStop sleeps a little: SIGTERM makes Stoker refuse new requests, and for some seconds after a pod is told to go the
  cluster's proxies still send it some. In the sleep they learn of it, and the requests are served. SIGTERM then drains.
- terminationGracePeriodSeconds is the one formula of `core.grace`; its 15 s before the drain cover the sleep.
- CPU limits equal requests: the quota is what Stoker reads its CPU budget from, and without one every replica would
  take its threads from the size of the node.
- The root filesystem is read-only, the user is nobody special, and no service account's token is there to steal.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from ui.cli.export.systemd import unit_name
from ui.cli.units import count

PRE_STOP_S = 5
"""For the cluster's proxies to hear that a pod is about to go; most need one or two."""
USER = 10001
HOME = "/var/lib/stoker"
CONFIG_FOLDER = "/etc/stoker"
FILE = "stoker.yaml"
NO_IMAGE = "SET-YOUR-IMAGE"
"""No valid name of an image, so that a forgotten one is an error and not somebody else's image."""
GPU_RESOURCES = {"cuda": "nvidia.com/gpu", "rocm": "amd.com/gpu"}
MOST_LETTERS = 63
SUPERVISOR_CORES = 1


@dataclass(frozen=True, slots=True)
class Replica:
    """A managed replica of the plan. device: `cpu`, `cuda:0`, …; threads: that it computes with on a CPU."""

    deployment: str
    device: str
    threads: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What the manifests are made of.

    text: the config. replicas: the managed ones. threads: STOKER_CPU_THREADS for the pod, None where the config says.
    grace_s: seconds from the pod's end to SIGKILL, the sleep before it included. key_variable: the environment variable
    of the API key, None where the config names none.
    """

    name: str
    image: str | None
    namespace: str | None
    text: str
    port: int
    replicas: Sequence[Replica]
    threads: int | None
    grace_s: int
    key_variable: str | None


def object_name(name: str) -> str:
    """As Kubernetes takes it: lower-case letters, digits and `-`, 63 at the most."""
    whole = "stoker" if name == "stoker" else unit_name(name)
    return re.sub(r"[^a-z0-9-]", "-", whole.lower())[:MOST_LETTERS].strip("-")


def manifests(facts: Facts) -> str:
    """The documents' text, without a last line end."""
    name = object_name(facts.name)
    return "\n---\n".join([_config_map(facts, name), _deployment(facts, name), _service(facts, name)])


def _config_map(facts: Facts, name: str) -> str:
    return f"""\
# kubectl apply -f FILE. To change the config, export again and apply: the pods are replaced one by one, without a gap.
# `stoker scale` works in a pod, but the config here is read-only, so a new pod begins with its numbers again.
apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}
{_namespace(facts)}\
data:
  {FILE}: {_block(facts.text)}"""


def _deployment(facts: Facts, name: str) -> str:
    digest = hashlib.sha256(facts.text.encode()).hexdigest()[:16]
    return f"""\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
{_namespace(facts)}\
  labels: {{app.kubernetes.io/name: stoker, app.kubernetes.io/instance: {name}}}
spec:
  replicas: 1                         # pods; the replicas inside one are the config's
  progressDeadlineSeconds: 1800       # models take their time to download and load
  strategy:
    # The new pod is ready before the old one goes, so there has to be room for both for a while.
    rollingUpdate: {{maxSurge: 1, maxUnavailable: 0}}
  selector:
    matchLabels: {{app.kubernetes.io/name: stoker, app.kubernetes.io/instance: {name}}}
  template:
    metadata:
      labels: {{app.kubernetes.io/name: stoker, app.kubernetes.io/instance: {name}}}
      annotations:
        stoker/config: "{digest}"   # another config makes another pod
{_scraping(facts)}\
    spec:
      # max(120, 15 + the longest drain_timeout_s + 50): export again when that changes.
      terminationGracePeriodSeconds: {facts.grace_s}
      automountServiceAccountToken: false
      enableServiceLinks: false
      securityContext:
        runAsNonRoot: true
        runAsUser: {USER}
        runAsGroup: {USER}
        fsGroup: {USER}
        seccompProfile: {{type: RuntimeDefault}}
      containers:
        - name: stoker
          image: {_image(facts)}
          command: [stoker, serve, --headless, --name, {_word(facts.name)}, -c, {CONFIG_FOLDER}/{FILE}]
          args: [--listen, "0.0.0.0:{facts.port}"]   # all of the pod's addresses, whatever the config says
          ports:
            - {{name: http, containerPort: {facts.port}}}
          env:
            - {{name: HOME, value: {HOME}}}   # models that are downloaded, logs
            - {{name: STOKER_RUNTIME_DIR, value: /tmp/stoker}}   # kubectl exec deploy/{name} -- stoker status
{_threads(facts)}{_key(facts, name)}\
          startupProbe:               # the supervisor answers within seconds; models load later
            httpGet: {{path: /health, port: http}}
            periodSeconds: 1
            failureThreshold: 60
          livenessProbe:
            httpGet: {{path: /health, port: http}}
            periodSeconds: 10
            timeoutSeconds: 5
          readinessProbe:             # 503 until every deployment can answer, and from the moment a stop begins
            httpGet: {{path: /ready, port: http}}
            periodSeconds: 2
            failureThreshold: 1
          lifecycle:
            preStop:                  # SIGTERM, which drains, comes after this: by then no proxy sends requests here
              exec: {{command: [sleep, "{PRE_STOP_S}"]}}
          resources:
{_resources(facts)}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {{drop: [ALL]}}
          volumeMounts:
            - {{name: config, mountPath: {CONFIG_FOLDER}, readOnly: true}}
            - {{name: home, mountPath: {HOME}}}
            - {{name: tmp, mountPath: /tmp}}
      volumes:
        - name: config
          configMap: {{name: {name}}}
        - name: home                  # a persistent volume here keeps downloaded models for the next pod
          emptyDir: {{}}
        - name: tmp
          emptyDir: {{}}"""


def _service(facts: Facts, name: str) -> str:
    return f"""\
apiVersion: v1
kind: Service
metadata:
  name: {name}
{_namespace(facts)}\
  labels: {{app.kubernetes.io/name: stoker, app.kubernetes.io/instance: {name}}}
spec:
  selector: {{app.kubernetes.io/name: stoker, app.kubernetes.io/instance: {name}}}
  ports:
    - {{name: http, port: {facts.port}, targetPort: http}}"""


# ------------------------------------------------------------------------------------------------- parts


def cores(replicas: Sequence[Replica]) -> int:
    """Cores of the pod: the threads of each CPU replica, one for each on a GPU, and the supervisor's own."""
    return SUPERVISOR_CORES + sum(each.threads if each.device == "cpu" else 1 for each in replicas)


def gpus(replicas: Sequence[Replica]) -> dict[str, int]:
    """How many different cards the plan uses, by resource name."""
    cards = {each.device for each in replicas if each.device.partition(":")[0] in GPU_RESOURCES}
    return dict(Counter(GPU_RESOURCES[card.partition(":")[0]] for card in sorted(cards)))


def _resources(facts: Facts) -> str:
    counted = Counter((each.deployment, each.threads if each.device == "cpu" else 0) for each in facts.replicas)
    parts = [
        f"{name}: {number} x {count(threads, 'thread') if threads else '1 core beside its GPU'}"
        for (name, threads), number in counted.items()
    ]
    amount = str(cores(facts.replicas))
    cards = "".join(f', {resource}: "{number}"' for resource, number in gpus(facts.replicas).items())
    return f"""\
            # {"; ".join(parts)}; 1 core for the supervisor. Threads follow from cpu.threads, else from the
            # machine that exported this. Memory: see the MEMORY column of `stoker status`, and add it to both.
            requests: {{cpu: "{amount}"}}
            limits: {{cpu: "{amount}"{cards}}}"""


def _threads(facts: Facts) -> str:
    if facts.threads is None:
        return ""
    return f"""\
            - {{name: STOKER_CPU_THREADS, value: "{facts.threads}"}}   # cpu.threads is not set in the config
"""


def _key(facts: Facts, name: str) -> str:
    if facts.key_variable is None:
        return ""
    return f"""\
            # kubectl create secret generic {name}-api-key --from-file={facts.key_variable}=FILE
            - name: {facts.key_variable}
              valueFrom: {{secretKeyRef: {{name: {name}-api-key, key: {facts.key_variable}}}}}
"""


def _scraping(facts: Facts) -> str:
    if facts.key_variable is not None:
        return "        # /metrics wants the API key as a bearer token, so a scraper needs a job of its own.\n"
    return f"""\
        prometheus.io/scrape: "true"
        prometheus.io/path: /metrics
        prometheus.io/port: "{facts.port}"
"""


def _namespace(facts: Facts) -> str:
    return f"  namespace: {_word(facts.namespace)}\n" if facts.namespace is not None else ""


def _image(facts: Facts) -> str:
    if facts.image is None:
        return f"{NO_IMAGE}   # one with Stoker, its `stoker` on the PATH, and what your models need"
    return _word(facts.image)


def _word(text: str) -> str:
    """A string that no YAML reader takes for anything else."""
    return json.dumps(text)


def _block(text: str) -> str:
    """The text as a literal block, so that it stays readable; where it would not come back the same, as one string."""
    body = text.rstrip("\n") + "\n"
    block = "|\n" + "".join(f"    {line}\n" if line else "\n" for line in body.split("\n")[:-1])
    try:
        same = yaml.safe_load(f"data:\n  key: {block}")["data"]["key"] == body
    except yaml.YAMLError:
        same = False
    return block.rstrip("\n") if same else json.dumps(text)
