"""LitServe: two worker processes behind its FastAPI front, over its ZeroMQ queue. Batches of MiniLM: 16 within 1 ms."""

import os
from typing import Any

import litserve
from answers import CONSTANT, embeddings

WORKERS = 2


class Noop(litserve.LitAPI):
    """Answers the same to all."""

    def setup(self, device: str) -> None:
        """Nothing to load."""

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # an annotation would be FastAPI's schema
        """JSON as it is."""
        return request

    def predict(self, x: Any) -> Any:
        """The same to all."""
        return CONSTANT

    def encode_response(self, output: Any) -> Any:
        """JSON as it is."""
        return output


class MiniLM(litserve.LitAPI):
    """Embeds a batch of requests, each of one or more texts."""

    def setup(self, device: str) -> None:
        """Load the model in this worker."""
        from sentences import SentenceEncoder

        self._encode = SentenceEncoder()

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # an annotation would be FastAPI's schema
        """The texts of a request."""
        return request["input"]

    def batch(self, inputs: list[Any]) -> list[Any]:
        """Requests stay apart until they are embedded."""
        return inputs

    def predict(self, x: list[Any]) -> list[Any]:
        """All texts of all requests in one go; the encoder splits them by length."""
        vectors = iter(self._encode([text for texts in x for text in texts]))
        return [[next(vectors) for _ in texts] for texts in x]

    def unbatch(self, output: list[Any]) -> list[Any]:
        """One answer a request."""
        return output

    def encode_response(self, output: Any) -> Any:
        """In OpenAI's form."""
        return embeddings(output)


def main() -> None:
    """Serve until SIGTERM."""
    if os.environ["BENCH_TASK"] == "minilm":
        api: litserve.LitAPI = MiniLM(max_batch_size=16, batch_timeout=0.001)
    else:
        api = Noop()
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=WORKERS, timeout=120, fast_queue=True)
    server.run(host="127.0.0.1", port=int(os.environ["BENCH_PORT"]), log_level="warning", generate_client_file=False)


if __name__ == "__main__":
    main()
