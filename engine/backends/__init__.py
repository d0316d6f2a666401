"""One file a way to compute: transformers, python, stub. Only this room and `engine.threads` import torch."""
