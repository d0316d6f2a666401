"""What every no-op server answers: the same JSON, of the size that Stoker's stub answers."""

EMBEDDING = [0.125, -0.25, 0.375, -0.5, 0.0625, -0.75, 0.875, 0.1875]

CONSTANT = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": EMBEDDING}],
    "model": "stub",
    "usage": {"prompt_tokens": 1, "total_tokens": 1},
}


def embeddings(vectors: list[list[float]]) -> dict[str, object]:
    """Vectors in OpenAI's form."""
    return {"data": [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]}
