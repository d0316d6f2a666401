"""The model in a bare loop, without any server: reads lines of JSON lists of batches of texts, answers each with times.

A line {"batches": [[text, …], …]} is answered with {"batch_seconds": […], "cpu_seconds": …}; {"embed": [text, …]} with
{"vectors": […]}. The first line out says that the model is loaded.
"""

from __future__ import annotations

import json
import sys
import time

from sentences import SentenceEncoder


def main() -> None:
    """Answer lines until standard input ends."""
    encode = SentenceEncoder()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "embed" in asked:
            print(json.dumps({"vectors": encode(asked["embed"])}), flush=True)
            continue
        taken = []
        cpu = time.process_time()
        for batch in asked["batches"]:
            began = time.perf_counter()
            encode(batch)
            taken.append(time.perf_counter() - began)
        print(json.dumps({"batch_seconds": taken, "cpu_seconds": time.process_time() - cpu}), flush=True)


if __name__ == "__main__":
    main()
